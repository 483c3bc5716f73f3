"""Ends a process as soon as its parent ends, also when the parent is killed (Linux, `PR_SET_PDEATHSIG`).

Used in two ways, and with the standard library only:

- as a module, by a program of ours: `die_with_parent(os.getppid())`;
- as a script, which then becomes any other program: `Popen(bound_command(["/usr/bin/etcd", "--name", "a"]))`.
  The request to the kernel survives exec, so that program needs to know nothing of it. It spares the parent
  a `preexec_fn`, which is unsafe beside threads.

The kernel watches the thread that started the process: start it on one that lives as long as the parent.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


class ParentGoneError(Exception):
    """The parent ended before this process could be bound to it."""


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends. On other systems than Linux: nothing.

    Raises:
        ParentGoneError: the parent is no longer `parent_pid`; the kernel will not kill this process.
        OSError: the kernel refuses.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot bind to the parent process: {os.strerror(number)}")
    if os.getppid() != parent_pid:  # it ended before the call above
        raise ParentGoneError("the parent process is gone")


def bound_command(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` bound to this process. `command[0]` is the path of a program."""
    return [sys.executable, "-I", __file__, str(os.getpid()), *command]


def main() -> None:
    """`python -I die_with_parent.py PARENT_PID PROGRAM ARGUMENTS...`: bind, then become the program."""
    parent_pid, program = int(sys.argv[1]), sys.argv[2:]
    try:
        die_with_parent(parent_pid)
    except (ParentGoneError, OSError) as error:
        sys.exit(str(error))
    os.execv(program[0], program)  # noqa: S606 - the parent's own command, no shell


if __name__ == "__main__":
    main()
