"""The pods of a simulated deployment: pending, ready, draining, gone; and what they cost."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from warmfleet_operator.scaling.decision import ReplicaState
from warmfleet_simulator.replica.replica import Replica
from warmfleet_simulator.router.fleet import SimulatedFleet
from warmfleet_simulator.scaling.autoscaler import Wanted

CLOSE_SECONDS: Final = 1.0
"""From a pod's end to that of its event streams: routers know of its end first."""
DRAIN_CHECK_SECONDS: Final = 1.0
"""A draining replica goes when it has had nothing to do for this long at most."""


class PodCounts(NamedTuple):
    """How many pods there are from `at_seconds` on."""

    at_seconds: float
    pending: int
    ready: int
    draining: int

    @property
    def total(self) -> int:
        return self.pending + self.ready + self.draining


class PodSeconds(msgspec.Struct, frozen=True):
    """What pods cost, by their state."""

    pending: float
    """From creation to readiness: they load and warm up."""
    ready: float
    draining: float

    @property
    def total(self) -> float:
        return self.pending + self.ready + self.draining


class Pods:
    """Starts and drains replicas. Every pod costs from its creation to its end, pending and draining too."""

    def __init__(
        self, fleet: SimulatedFleet, make: Callable[[str], Replica], *, start_delay_seconds: float
    ) -> None:
        """`make` makes a replica of a uid, once its pod has been pending for `start_delay_seconds`."""
        self.made: list[Replica] = []
        """All replicas so far."""
        self.timeline: list[PodCounts] = []
        self._fleet = fleet
        self._make = make
        self._start_delay_seconds = start_delay_seconds
        self._loop = asyncio.get_running_loop()
        self._pending: dict[str, asyncio.TimerHandle] = {}
        self._ready: dict[str, Replica] = {}
        self._draining: dict[str, Replica] = {}
        self._created = 0

    @property
    def state(self) -> ReplicaState:
        """As the cluster shows it."""
        return ReplicaState(
            spec_replicas=len(self._pending) + len(self._ready),
            ready=len(self._ready),
            pending=len(self._pending),
            stopping=len(self._draining),
        )

    @property
    def ready_uids(self) -> tuple[str, ...]:
        return tuple(self._ready)

    def start_ready(self, count: int) -> None:
        """The pods that are there from the beginning."""
        for _ in range(count):
            self._started(self._uid())
        self._count()

    def scale(self, wanted: Wanted) -> None:
        """Make it `wanted` pods: pending ones go first, then the victim, then the newest."""
        difference = wanted.replicas - self.state.spec_replicas
        if not difference:
            return
        for _ in range(difference):
            uid = self._uid()
            self._pending[uid] = self._loop.call_later(self._start_delay_seconds, self._become_ready, uid)
        victim = wanted.victim
        for _ in range(-difference):
            if self._pending:
                _, timer = self._pending.popitem()
                timer.cancel()
            else:
                self._drain(victim if victim in self._ready else next(reversed(self._ready)))
        self._count()

    def seconds(self, since_seconds: float, until_seconds: float) -> PodSeconds:
        """What the pods cost between two times."""
        pending = ready = draining = 0.0
        ends = [*(counts.at_seconds for counts in self.timeline[1:]), until_seconds]
        for counts, end in zip(self.timeline, ends, strict=True):
            length = max(min(end, until_seconds) - max(counts.at_seconds, since_seconds), 0.0)
            pending += counts.pending * length
            ready += counts.ready * length
            draining += counts.draining * length
        return PodSeconds(pending, ready, draining)

    def close(self) -> None:
        """End all pods."""
        for timer in self._pending.values():
            timer.cancel()
        for replica in self.made:
            replica.close()

    def _uid(self) -> str:
        self._created += 1
        return f"replica-{self._created:04}"

    def _become_ready(self, uid: str) -> None:
        del self._pending[uid]
        self._started(uid)
        self._count()

    def _started(self, uid: str) -> None:
        replica = self._ready[uid] = self._make(uid)
        self.made.append(replica)
        self._fleet.add(replica)

    def _drain(self, uid: str) -> None:
        replica = self._draining[uid] = self._ready.pop(uid)
        replica.drain()
        self._loop.call_later(DRAIN_CHECK_SECONDS, self._check_drained, uid)

    def _check_drained(self, uid: str) -> None:
        if self._draining[uid].open_answers:
            self._loop.call_later(DRAIN_CHECK_SECONDS, self._check_drained, uid)
            return
        replica = self._draining.pop(uid)
        self._fleet.remove(uid)
        self._loop.call_later(CLOSE_SECONDS, replica.close)
        self._count()

    def _count(self) -> None:
        counts = PodCounts(self._loop.time(), len(self._pending), len(self._ready), len(self._draining))
        if self.timeline and self.timeline[-1].at_seconds == counts.at_seconds:
            self.timeline.pop()
        self.timeline.append(counts)
