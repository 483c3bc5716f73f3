"""The engine process's part: counts its steps, and measures the machine's limits while nothing else runs.

A limit that is measured beside other work is none, and a start or a request must not wait for one. So the
engine has them measured, by a process of its own, once the machine was idle for `IDLE_SECONDS`, and gives up
when a message comes; the next idle time has the next attempt. Until limits are known there are no ratios.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from warmfleet_runtime.processors import IDLE_BUSY_RATIO, STAT, busy_ratio
from warmfleet_worker.engine.roofline import ModelCost, Phase, StepRoofline
from warmfleet_worker.engine.step_time import StepShape
from warmfleet_worker.roofline.limits_file import limits_path, read_limits
from warmfleet_worker.roofline.measurement import NeverMeasurable
from warmfleet_worker.roofline.measuring_process import Measurement, measured_by_a_process

IDLE_SECONDS: Final = 30.0
"""Without any work here, and with an idle machine, before a measurement begins."""
MAX_FAILURES: Final = 3
"""Attempts that failed, such as by too little free memory, before there is no other."""

_log = structlog.get_logger(__name__)


class EngineRoofline:
    """Ratios of one engine's steps to the limits of its machine.

    roofline = EngineRoofline(cost)
    roofline.observe(StepShape.of(batch), seconds)  # after each step
    while roofline.advance(): ...  # while there is no work; looks for messages in between
    roofline.interrupt()  # there is work
    """

    def __init__(
        self,
        cost: ModelCost,
        *,
        path: Path | None = None,
        begin: Callable[[], Measurement] | None = None,
        clock: Callable[[], float] = time.monotonic,
        stat: Callable[[], str] = lambda: STAT.read_text(encoding="utf-8"),
    ) -> None:
        """Use limits that were measured before, if there are any; the options are for tests."""
        self._cost = cost
        self._path = path or limits_path()
        self._begin = begin or measured_by_a_process
        self._clock = clock
        self._stat = stat
        self._measurement: Measurement | None = None
        self._idle_since: tuple[float, str] | None = None
        self._failures = 0
        limits = read_limits(self._path)
        self._steps = None if limits is None else StepRoofline(cost, limits)

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Count one finished step."""
        if self._steps is not None:
            self._steps.observe(shape, seconds)

    def ratio(self, phase: Phase) -> float:
        """Least time over real time of the recent steps of a phase; 0.0 while it is not known."""
        return 0.0 if self._steps is None else self._steps.ratio(phase)

    def advance(self) -> bool:
        """Measure for a moment, if it is time to; whether there is more to measure at once.

        Call it whenever the engine has nothing to do.
        """
        if self._steps is not None or self._failures >= MAX_FAILURES:
            return False
        try:
            if self._measurement is None and not self._begin_if_idle():
                return False
            assert self._measurement is not None
            next(self._measurement)
        except StopIteration as end:
            self._measurement = None
            # What the measurement has kept may be better, of an earlier one.
            self._steps = StepRoofline(self._cost, read_limits(self._path) or end.value)
            return False
        except Exception as error:  # noqa: BLE001 - an engine without these ratios is as good as any
            self._measurement = None
            is_final = isinstance(error, NeverMeasurable)
            self._failures = MAX_FAILURES if is_final else self._failures + 1
            log = _log.info if is_final else _log.warning
            log("the limits of this machine were not measured", reason=str(error))
            return False
        return True

    def interrupt(self) -> None:
        """There is work: give back what a measurement holds. The next idle time begins anew."""
        self._idle_since = None
        if self._measurement is not None:
            self._measurement.close()
            self._measurement = None

    def _begin_if_idle(self) -> bool:
        now = self._clock()
        if self._idle_since is None:
            self._idle_since = (now, self._stat())
            return False
        since, stat = self._idle_since
        if now - since < IDLE_SECONDS:
            return False
        self._idle_since = None
        if busy_ratio(stat, self._stat()) > IDLE_BUSY_RATIO:
            return False
        # Another process may have measured meanwhile.
        limits = read_limits(self._path)
        if limits is not None:
            self._steps = StepRoofline(self._cost, limits)
            return False
        self._measurement = self._begin()
        return True
