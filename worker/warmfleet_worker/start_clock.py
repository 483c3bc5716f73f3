"""Times the phases of this worker's start, on the monotonic clock that all processes of a machine share."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from warmfleet_contracts.cache.start_phases import MAX_PHASE_SECONDS, StartPhases

_STAT: Final = Path("/proc/self/stat")
_START_TICKS: Final = 19
"""Index of `starttime` among the fields after the command's name, proc_pid_stat(5)."""


class StartClock:
    """What is known of the start so far; each phase is taken once.

    clock = StartClock(process_started_at())
    clock.engine_ready(imports_at=..., load_at=...)
    clock.opened()
    clock.first_token(0.08)
    clock.phases.load
    """

    def __init__(self, started_at: float = 0.0) -> None:
        """`started_at`: of this process, by `time.monotonic`."""
        self.phases = StartPhases()
        self._started_at = started_at
        self._ready_at = started_at

    def engine_ready(self, *, imports_at: float, load_at: float) -> None:
        """The engine can compute. It began with its libraries and with the model at these times.

        An engine that did not measure them has 0: then all of its start is `load`.
        """
        self._ready_at = time.monotonic()
        if imports_at <= 0 or load_at <= 0:
            self.phases = StartPhases(load=_bounded(self._ready_at - self._started_at))
            return
        self.phases = StartPhases(
            process=_bounded(imports_at - self._started_at),
            imports=_bounded(load_at - imports_at),
            load=_bounded(self._ready_at - load_at),
        )

    def opened(self) -> None:
        """It takes requests from now on."""
        if self.phases.prewarm is None:
            seconds = _bounded(time.monotonic() - self._ready_at)
            self.phases = msgspec.structs.replace(self.phases, prewarm=seconds)

    def first_token(self, seconds: float) -> None:
        """A request got its first token so many seconds after its arrival."""
        if self.phases.first_token is None:
            self.phases = msgspec.structs.replace(self.phases, first_token=_bounded(seconds))


def process_started_at() -> float:
    """When this process started, by `time.monotonic`; now where the system does not report it."""
    with suppress(OSError, ValueError, IndexError):
        ticks = int(_STAT.read_text().rpartition(")")[2].split()[_START_TICKS])
        age_seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.monotonic() - age_seconds
    return time.monotonic()


def _bounded(seconds: float) -> float:
    return round(min(max(seconds, 0.0), MAX_PHASE_SECONDS), 3)
