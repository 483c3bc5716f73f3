"""A command that starts under limits of the kernel, and a process that gets them while it runs."""

import json
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

Limits = Mapping[int, tuple[int, int]]
"""Soft and hard limit by `resource.RLIMIT_...`."""

_LAUNCH: Final = """
import json, os, resource, sys
for which, limits in json.loads(sys.argv[1]).items():
    resource.setrlimit(int(which), tuple(limits))
os.execv(sys.argv[2], sys.argv[2:])
"""


def open_files(soft: int, hard: int) -> Limits:
    """So many file descriptors."""
    return {resource.RLIMIT_NOFILE: (soft, hard)}


def full_disk() -> Limits:
    """No file can grow: every write to one fails, as on a disk without room."""
    return {resource.RLIMIT_FSIZE: (0, resource.RLIM_INFINITY)}


def roomy_disk() -> Limits:
    return {resource.RLIMIT_FSIZE: (resource.RLIM_INFINITY, resource.RLIM_INFINITY)}


def under(limits: Limits, command: list[str]) -> list[str]:
    """`command`, which names its program by path, under `limits`."""
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, json.dumps(limits), *command] if limits else command


@contextmanager
def full_disk_here() -> Iterator[None]:
    """A full disk for the calling process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def limit_process(pid: int, limits: Limits) -> None:
    """Change the limits of a process that runs."""
    for which, pair in limits.items():
        resource.prlimit(pid, which, pair)
