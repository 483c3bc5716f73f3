"""Turns itself into the program it is given, in another network namespace, bound to die with its parent.

Run as a plain file (`python -I launcher.py PARENT_PID NAMESPACE PROGRAM ARGUMENTS...`) with the standard
library only. The binding (`PR_SET_PDEATHSIG`) and the namespace survive exec, so the program needs to know
nothing of them. Doing it here and not between fork and exec keeps the parent free of `preexec_fn`, which is
unsafe beside threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000


def main() -> None:
    """Bind, check that the parent is still the one that started us, enter, and become the program."""
    parent, namespace, program = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"cannot bind to the parent process: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        sys.exit("the parent process is gone")
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    if libc.setns(descriptor, CLONE_NEWNET) != 0:
        sys.exit(f"cannot enter the cluster's network: {os.strerror(ctypes.get_errno())}")
    os.execv(program[0], program)  # noqa: S606 - the supervisor's own command, no shell


if __name__ == "__main__":
    main()
