"""Turns itself into the program it is given, bound to die with the process that started it.

Run as a plain file (`python -I launcher.py PARENT_PID PROGRAM ARGUMENTS...`) with the standard library only.
The binding (`PR_SET_PDEATHSIG`) survives exec, so the program needs to know nothing of it. Doing it here and
not between fork and exec keeps the parent free of `preexec_fn`, which is unsafe beside threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind, check that the parent is still the one that started us, and become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"cannot bind to the parent process: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the parent process is gone")
    os.execv(program[0], program)  # noqa: S606 - the supervisor's own command, no shell


if __name__ == "__main__":
    main()
