"""The pump: looks at the queues whenever somebody may have room, and serves who is next.

`wake` is called when an answer or a prefill ended, a load report came, the fleet changed. While anybody is
held a slow tick does the same, so that no lost call can strand a request.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from warmfleet_router.admission.assignment import Grants
from warmfleet_router.admission.model_queue import ModelQueue
from warmfleet_router.admission.placement import Placement
from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_router.admission.queued_request import Turn
from warmfleet_router.admission.wait_queue import Hold
from warmfleet_router.error_responses import no_worker_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.capacity import Need, Shortage
from warmfleet_router.routing.fleet_snapshot import FleetSnapshot
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.picker import PickedWorker

PUMP_SECONDS: Final = 0.002
"""The queue is looked at once per so long at most, whatever happens in between."""
TICK_SECONDS: Final = 0.5
SCANNED_REQUESTS: Final = 64
"""Requests looked at in one go, in their order."""
MAX_PASSED_OVER: Final = 16
"""Requests without a fitting worker that may be passed over in one go, each at the price of a choice."""


@dataclass(slots=True)
class _Scan:
    """What one look at a queue has found so far."""

    planned: dict[str, UnreportedLoad] = field(default_factory=dict)
    """What workers will be asked by those who wait for them, by uid."""
    done: set[str] = field(default_factory=set)
    """Tenants none of whose further requests can fit."""
    passed_over: int = 0

    @property
    def is_over(self) -> bool:
        return self.passed_over >= MAX_PASSED_OVER

    def pass_over(self, placement: Placement) -> None:
        """Somebody prefers to wait for a worker: those behind must reckon with it."""
        self.passed_over += 1
        before = self.planned.get(placement.plan_uid, UnreportedLoad())
        self.planned[placement.plan_uid] = before + placement.plan


class Pump:
    """Serves all queues of one router."""

    def __init__(
        self,
        settings: AdmissionSettings,
        lines: Mapping[str, ModelQueue[Turn]],
        hold: Hold,
        grants: Grants,
        *,
        now: Callable[[], float],
        metrics: RouterMetrics,
    ) -> None:
        self._settings = settings
        self._lines = lines
        self._hold = hold
        self._grants = grants
        self._now = now
        self._metrics = metrics
        self._scheduled = False
        self._pumped_at = float("-inf")
        self._tick: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Somebody may have room. Costs nothing while nobody waits."""
        if not self._hold.total.requests:
            return
        loop = asyncio.get_running_loop()
        if self._tick is None:
            self._tick = loop.call_later(TICK_SECONDS, self._on_tick)
        if self._scheduled:
            return
        self._scheduled = True
        wait_seconds = self._pumped_at + PUMP_SECONDS - self._now()
        if wait_seconds > 0:
            loop.call_later(wait_seconds, self._pump)
        else:
            loop.call_soon(self._pump)

    def _on_tick(self) -> None:
        self._tick = None
        self.wake()

    def _pump(self) -> None:
        self._scheduled = False
        self._pumped_at = self._now()
        for line in list(self._lines.values()):
            if line.waiting:
                self._serve_line(line)

    def _serve_line(self, line: ModelQueue[Turn]) -> None:
        fleet = self._grants.look(line.model)
        if not fleet.ready:
            self._wait_for_a_worker(line)
            return
        line.unready_since = None
        waiting = [*line.retries, *(waiting.item for waiting in line.fair.head(SCANNED_REQUESTS))]
        scan = _Scan()
        for turn in waiting:
            is_next = scan.passed_over == 0
            if scan.is_over or not (is_next or fleet.has_capacity(Need(1), self._grants.rule)):
                return
            choice = self._consider(turn, line, fleet, scan, is_next=is_next)
            if choice is not None:
                self._grants.give(turn, choice)
                self._hold.release(turn, line)
                self._metrics.on_held(line.model, turn.held_seconds)
                fleet.charged(choice.candidate.uid)
        if line.waiting and len(waiting) >= SCANNED_REQUESTS:
            self.wake()

    def _consider(
        self, turn: Turn, line: ModelQueue[Turn], fleet: FleetSnapshot, scan: _Scan, *, is_next: bool
    ) -> PickedWorker | None:
        """A worker for `turn`; None if it is passed over this time. `is_next`: nobody before it was."""
        if turn.tried.issuperset(fleet.ready):
            self._hold.refuse(turn, line, no_worker_error(line.model))
            return None
        if turn.tenant.name in scan.done:
            return None
        rule = self._grants.rule
        aged = self._now() - turn.held_since >= self._settings.patience_seconds
        lacks = fleet.shortages(self._grants.need(turn, fleet), rule, turn.tried)
        if None in lacks or (
            is_next and any(self._grants.may_bypass(turn, fleet, uid) for uid in fleet.ready)
        ):
            may_wait = not aged and not turn.tried
            placement = self._grants.decide(
                turn, fleet, may_wait=may_wait, is_next=is_next, planned=scan.planned
            )
            if placement.choice is None:
                scan.pass_over(placement)
            return placement.choice
        scan.passed_over += 1
        if aged or (turn.sequences == 1 and Shortage.BLOCKS not in lacks):
            scan.done.add(turn.tenant.name)
        widest = self._grants.need(turn, fleet, may_use_headroom=True)
        if aged and not fleet.has_capacity(widest, rule, turn.tried):
            # It fits nowhere and was passed over for long enough: what becomes free is kept for it.
            scan.passed_over = MAX_PASSED_OVER
        return None

    def _wait_for_a_worker(self, line: ModelQueue[Turn]) -> None:
        now = self._now()
        if line.unready_since is None:
            line.unready_since = now
        if now - line.unready_since >= self._settings.no_worker_seconds:
            for turn in list(line.everyone()):
                self._hold.refuse(turn, line, no_worker_error(line.model))
