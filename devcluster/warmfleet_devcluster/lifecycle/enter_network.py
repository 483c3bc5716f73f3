"""Becomes the program it is given, in another network namespace, bound to end with its parent.

Run as a script: `python -I enter_network.py PARENT_PID NAMESPACE PROGRAM ARGUMENTS...`. The namespace and the
binding survive exec, so the program needs to know nothing of them.
"""

import ctypes
import os
import sys

from warmfleet_runtime.die_with_parent import ParentGoneError, die_with_parent

CLONE_NEWNET = 0x40000000


def main() -> None:
    """Bind to the parent, enter the namespace, become the program."""
    parent_pid, namespace, program = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    try:
        die_with_parent(parent_pid)
    except (ParentGoneError, OSError) as error:
        sys.exit(str(error))
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
        sys.exit(f"cannot enter the cluster's network: {os.strerror(ctypes.get_errno())}")
    os.execv(program[0], program)  # noqa: S606 - the supervisor's own command, no shell


if __name__ == "__main__":
    main()
