"""The step watchdog: an engine that has work must report steps.

After `stall_seconds` of silence the worker is not alive, not ready, and says so to its routers: the load in
every frame has `total_blocks` = 0, which means an engine that cannot compute. After twice that time the
engine process is killed, and with it this worker ends, so that any supervisor starts another one.
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
    HEALTHY = "healthy"
    STALLED = "stalled"
    DEAD = "dead"


class StepWatchdog:
    """Judges an engine by the age of its last report. No clock of its own."""

    def __init__(self, stall_seconds: float) -> None:
        self.check_seconds = min(stall_seconds / 8, MAX_CHECK_SECONDS)
        """How often to look."""
        self._stall_seconds = stall_seconds
        self._looked_at: float | None = None
        self._heard_at: float | None = None
        self._silent_seconds = 0.0

    def check(self, now: float, *, working: bool, last_report_seconds: float) -> Health:
        """What the engine is like, if it is looked at every `check_seconds`."""
        elapsed = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        if not working or last_report_seconds != self._heard_at:
            self._heard_at = last_report_seconds
            self._silent_seconds = 0.0
        else:
            # Time in which this process did not run either (stopped, starved) says nothing of the engine.
            self._silent_seconds += min(elapsed, 2 * self.check_seconds)
        if self._silent_seconds >= 2 * self._stall_seconds:
            return Health.DEAD
        return Health.STALLED if self._silent_seconds >= self._stall_seconds else Health.HEALTHY


async def watch_engine(worker: WorkerState, engine: ProcessEngineClient) -> None:
    """Keep `worker.stalled` true to the engine; returns after it has killed a lost one."""
    watchdog = StepWatchdog(worker.settings.stall_seconds)
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(watchdog.check_seconds)
        health = watchdog.check(
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
