"""The step watchdog: an engine that has work must report steps.

After `stall_seconds` without a report the worker is neither live nor ready, and the load in every event
frame has `total_blocks` = 0: routers send it nothing. After twice that time the engine process is killed;
the worker ends with it, and its supervisor starts another one.
"""

import asyncio
import enum
from typing import Final

import structlog

from warmfleet_worker.server.engine_client import ProcessEngineClient
from warmfleet_worker.server.state import WorkerState

MAX_CHECK_SECONDS: Final = 1.0

log = structlog.get_logger("warmfleet.worker.watchdog")


class Health(enum.Enum):
    """Verdict of the watchdog on the engine."""

    HEALTHY = "healthy"
    STALLED = "stalled"
    """No report for `stall_seconds`; it may recover."""
    DEAD = "dead"
    """No report for twice as long: to be killed."""


class StepWatchdog:
    """Detects an engine that has work and reports no step. Reads no clock: the time is an argument."""

    def __init__(self, stall_seconds: float) -> None:
        self.check_seconds = min(stall_seconds / 8, MAX_CHECK_SECONDS)
        """Interval between calls of `update`."""
        self._stall_seconds = stall_seconds
        self._checked_at: float | None = None
        self._reported_at: float | None = None
        self._silent_seconds = 0.0

    def update(self, now: float, *, working: bool, last_report_seconds: float) -> Health:
        """Verdict at time `now`, in seconds; call it every `check_seconds`."""
        elapsed = 0.0 if self._checked_at is None else now - self._checked_at
        self._checked_at = now
        if not working or last_report_seconds != self._reported_at:
            self._reported_at = last_report_seconds
            self._silent_seconds = 0.0
        else:
            # Time in which this process did not run either (stopped, starved) is not counted.
            self._silent_seconds += min(elapsed, 2 * self.check_seconds)
        if self._silent_seconds >= 2 * self._stall_seconds:
            return Health.DEAD
        return Health.STALLED if self._silent_seconds >= self._stall_seconds else Health.HEALTHY


async def watch_engine(worker: WorkerState, engine: ProcessEngineClient) -> None:
    """Update `worker.stalled` until the engine is dead; then kill it and return."""
    watchdog = StepWatchdog(worker.settings.stall_seconds)
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(watchdog.check_seconds)
        health = watchdog.update(
            loop.time(),
            working=engine.working_sequences > 0,
            last_report_seconds=engine.last_report_seconds,
        )
        stalled = health is not Health.HEALTHY
        if stalled != worker.stalled:
            log.warning("the engine is stalled" if stalled else "the engine steps again")
            worker.stalled = stalled
            worker.events.stall(stalled=stalled)
            worker.metrics.on_stall(stalled=stalled)
        if health is Health.DEAD:
            engine.kill(f"the engine reported no step for {2 * worker.settings.stall_seconds:g} seconds")
            return
