"""Which process a pid meant when it was written down: pids are reused, pid and start time are not."""

import contextlib
import os
import signal
from functools import cache
from pathlib import Path

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One process of one boot of this machine."""

    pid: int
    started: str
    """Boot id and start time in clock ticks after boot."""


@cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> ProcessIdentity | None:
    """The live process with this pid, None if there is none (a zombie is none)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command in parentheses, which may itself hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return ProcessIdentity(pid=pid, started=f"{_boot_id()}:{fields[19]}")


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether that very process still runs."""
    return identify(identity.pid) == identity


def send_signal(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Signal that very process; False if it is gone, also if its pid was reused."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor pins the process, so what is true now stays true for the signal.
        if not is_alive(identity):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
            return True
        return False
    finally:
        os.close(descriptor)
