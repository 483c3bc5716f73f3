"""Shrinks in progress: what is marked and handed over, and whether the marked pods are those that went."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.objects.pods import PodView, replicas_of
from warmfleet_operator.replicas.shrink_step import (
    MARKED_SECONDS,
    MOVING_SECONDS,
    Marked,
    Step,
    shrink_step,
)
from warmfleet_operator.replicas.victims import Marking, markings, victims_of
from warmfleet_operator.scaling.signals import Reading, newest_reports
from warmfleet_operator.watch.entry import Key

CHECK_SECONDS: Final = 60.0
"""A lower number that has taken no pod by then is checked no longer."""

PAYBACK_SECONDS: Final = 600.0
"""Of a ModelDeployment without a scaling policy."""

log = structlog.get_logger("warmfleet.operator")


class Totals(Protocol):
    """What routers know of replicas."""

    async def read(self) -> None:
        """Ask all routers once."""

    def readings(self) -> Sequence[Reading]:
        """The last answer of each router, while it is recent."""


class Handover(Protocol):
    """Has what victims hold computed elsewhere."""

    async def hand_over(
        self, deployment: str, victims: Sequence[str], *, seconds: float, payback_seconds: float
    ) -> None:
        """Return when that is done, or the time is over."""


@dataclass(frozen=True, slots=True)
class NextNumber:
    """What a reconciliation writes of the number of replicas."""

    replicas: int
    markings: tuple[Marking, ...] = ()
    """Written before the number, which is the current one while there are any."""
    victims: tuple[str, ...] | None = None
    """Uids that `markings` are for; None where nothing is marked now."""
    again_seconds: float | None = None
    """After this the next step is due."""


@dataclass(frozen=True, slots=True)
class _Lowered:
    """A number that was lowered: which pods were there, and which were to go."""

    before: frozenset[str]
    victims: frozenset[str]
    count: int
    at_seconds: float


class Shrinks:
    """Remembers per ModelDeployment what this process marked. After a restart it marks again.

    number = await shrinks.next_number(key, pods, current=4, wanted=3)
    # write number.markings, then number.replicas
    shrinks.written(key, number, wanted=3, payback_seconds=PAYBACK_SECONDS)
    await shrinks.stop()
    """

    def __init__(
        self,
        *,
        totals: Totals,
        handover: Handover,
        on_handed_over: Callable[[Key], None],
        metrics: OperatorMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_handed_over` is called when a handover has ended: the next step may be due."""
        self._totals = totals
        self._handover = handover
        self._on_handed_over = on_handed_over
        self._metrics = metrics
        self._clock = clock
        self._marked: dict[Key, Marked] = {}
        self._lowered: dict[Key, _Lowered] = {}
        self._handing_over: dict[Key, asyncio.Task[None]] = {}

    def forget(self, key: Key) -> None:
        """Drop what is kept of a ModelDeployment that was deleted."""
        self._marked.pop(key, None)
        self._lowered.pop(key, None)
        self._give_up(key)

    def forget_all(self) -> None:
        """Drop everything: another replica of the operator leads."""
        self._marked.clear()
        self._lowered.clear()
        for key in tuple(self._handing_over):
            self._give_up(key)

    async def stop(self) -> None:
        """Drop everything, and wait for the ends of handovers."""
        tasks = tuple(self._handing_over.values())
        self.forget_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def next_number(
        self, key: Key, pods: Iterable[PodView], *, current: int, wanted: int, first: str | None = None
    ) -> NextNumber:
        """The number to write now, and the marks before it.

        Args:
            key: the ModelDeployment.
            pods: its pods.
            current: of its Deployment.
            wanted: what its Deployment is to have.
            first: uid of the victim that the scaling policy chose.
        """
        replicas, now = replicas_of(pods), self._clock()
        live = frozenset(pod.uid for pod in replicas)
        self._check(key, live, now)
        marked = self._marked.get(key)
        handing_over = key in self._handing_over
        step = shrink_step(
            current=current,
            wanted=wanted,
            marked=marked,
            live=live,
            now_seconds=now,
            handing_over=handing_over,
        )
        if step is Step.WAIT:
            assert marked is not None
            due = marked.due_seconds(handing_over=handing_over)
            return NextNumber(current, again_seconds=max(0.0, due - now))
        if step is Step.MARK:
            await self._totals.read()
            reports = newest_reports(self._totals.readings())
            victims = victims_of(replicas, reports, len(live) - wanted, first)
            return NextNumber(
                current, markings(replicas, victims), tuple(pod.uid for pod in victims), MARKED_SECONDS
            )
        if 0 < wanted < current and marked is not None and len(live) > wanted:
            self._lowered[key] = _Lowered(live, frozenset(marked.victims), len(live) - wanted, now)
        self._marked.pop(key, None)
        self._give_up(key)
        return NextNumber(wanted)

    def written(self, key: Key, number: NextNumber, wanted: int, payback_seconds: float) -> None:
        """The marks and the number of `number` were written.

        What marked replicas hold that is expected within `payback_seconds` is handed over from now on.
        """
        if number.victims is None:
            return
        self._give_up(key)
        self._handing_over[key] = asyncio.create_task(
            self._hand_over(key, number.victims, payback_seconds), name="handover"
        )
        now, before = self._clock(), self._marked.get(key)
        begun = now if before is None else before.begun_seconds
        self._marked[key] = Marked(wanted, number.victims, now, begun)

    async def _hand_over(self, key: Key, victims: Sequence[str], payback_seconds: float) -> None:
        try:
            await self._handover.hand_over(
                str(key), victims, seconds=MOVING_SECONDS, payback_seconds=payback_seconds
            )
        finally:
            if self._handing_over.get(key) is asyncio.current_task():
                del self._handing_over[key]
                self._on_handed_over(key)

    def _give_up(self, key: Key) -> None:
        """Wait no longer for the handover of victims that were marked before."""
        task = self._handing_over.pop(key, None)
        if task is not None:
            task.cancel()

    def _check(self, key: Key, live: frozenset[str], now: float) -> None:
        """Count the pods that went after the number was lowered, by whether they were to go."""
        lowered = self._lowered.get(key)
        if lowered is None:
            return
        gone = lowered.before - live
        if len(gone) < lowered.count and now - lowered.at_seconds < CHECK_SECONDS:
            return
        del self._lowered[key]
        other = gone - lowered.victims
        self._metrics.shrink_victims.labels("ours").inc(len(gone) - len(other))
        self._metrics.shrink_victims.labels("other").inc(len(other))
        if other:
            log.warning("other pods went than were marked", deployment=str(key), uids=sorted(other))
