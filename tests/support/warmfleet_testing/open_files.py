"""A command that starts with few file descriptors."""

import sys
from typing import Final, NamedTuple

_LAUNCH: Final = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
os.execv(sys.argv[3], sys.argv[3:])
"""


class OpenFiles(NamedTuple):
    """Limits of one process."""

    soft: int
    hard: int


def under(limits: OpenFiles | None, command: list[str]) -> list[str]:
    """`command`, which names its program by path, under `limits`; None leaves them as they are."""
    if limits is None:
        return command
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(limits.soft), str(limits.hard), *command]
