"""The shrinks in progress: what was marked, and whether the marked pods are those that went."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from warmfleet_operator.metrics import OperatorMetrics
from warmfleet_operator.objects.pods import PodView, replicas_of
from warmfleet_operator.replicas.shrink_step import MARKED_SECONDS, Marked, Step, shrink_step
from warmfleet_operator.replicas.victims import Marking, markings, victims_of
from warmfleet_operator.scaling.signals import Reading, newest_reports
from warmfleet_operator.watch.entry import Key

CHECK_SECONDS: Final = 60.0
"""A lower number that has taken no pod by then is checked no longer."""

log = structlog.get_logger("warmfleet.operator")


class Totals(Protocol):
    """What routers know of replicas."""

    async def read(self) -> None:
        """Ask all routers once."""

    def readings(self) -> Sequence[Reading]:
        """The last answer of each router, while it is recent."""


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
    shrinks.written(key, number, wanted=3)
    """

    def __init__(
        self, *, totals: Totals, metrics: OperatorMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._totals = totals
        self._metrics = metrics
        self._clock = clock
        self._marked: dict[Key, Marked] = {}
        self._lowered: dict[Key, _Lowered] = {}

    def forget(self, key: Key) -> None:
        """Drop what is kept of a ModelDeployment that was deleted."""
        self._marked.pop(key, None)
        self._lowered.pop(key, None)

    def forget_all(self) -> None:
        """Drop everything: another replica of the operator leads."""
        self._marked.clear()
        self._lowered.clear()

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
        step = shrink_step(current=current, wanted=wanted, marked=marked, live=live, now_seconds=now)
        if step is Step.WAIT:
            assert marked is not None
            return NextNumber(current, again_seconds=max(0.0, marked.at_seconds + MARKED_SECONDS - now))
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
        return NextNumber(wanted)

    def written(self, key: Key, number: NextNumber, wanted: int) -> None:
        """The marks and the number of `number` were written."""
        if number.victims is None:
            return
        now, before = self._clock(), self._marked.get(key)
        begun = now if before is None else before.begun_seconds
        self._marked[key] = Marked(wanted, number.victims, now, begun)

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
