"""Which pods go when a Deployment gets fewer replicas, and the marks that make Kubernetes take those. Pure.

A ReplicaSet deletes pods without a node first, then by phase, then those that are not ready, and only among
equals the one with the lowest deletion cost (Kubernetes, `ActivePodsWithRanks`). So pods that serve nothing
go first in any case, and among those that serve the one that holds least of what only it holds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from warmfleet_contracts.cache.fleet_totals import ReplicaTotals
from warmfleet_operator.objects.pods import PodView, replicas_of
from warmfleet_operator.scaling.shrink import removal_order

_PHASES: Final = {"Pending": 0, "Unknown": 1}


@dataclass(frozen=True, slots=True)
class Marking:
    """The deletion cost that a pod gets."""

    name: str
    uid: str
    cost: int | None
    """None: the annotation is removed."""


def victims_of(
    pods: Iterable[PodView], reports: Mapping[str, ReplicaTotals], count: int, first: str | None = None
) -> tuple[PodView, ...]:
    """The pods that go, first to last.

    Args:
        pods: of one ModelDeployment.
        reports: the newest report of each replica by uid; one without a report holds nothing that is known.
        count: how many go.
        first: uid of the one that the scaling policy decided to give up.
    """

    def order(pod: PodView) -> tuple[object, ...]:
        common = removal_order(
            pod.uid,
            reports.get(pod.uid),
            ready=pod.ready,
            created_seconds=pod.created_seconds,
            first=first,
        )
        return (pod.assigned, _PHASES.get(pod.phase, 2), *common, pod.name)

    return tuple(sorted(replicas_of(pods), key=order)[: max(0, count)])


def markings(pods: Iterable[PodView], victims: Sequence[PodView]) -> tuple[Marking, ...]:
    """The marks that have to change so that exactly `victims` go first, in their order.

    A negative cost of another pod is a mark of a shrink that did not happen.
    """
    wanted = {pod.uid: place - len(victims) for place, pod in enumerate(victims)}
    return tuple(
        Marking(pod.name, pod.uid, wanted.get(pod.uid))
        for pod in replicas_of(pods)
        if (pod.uid in wanted and pod.deletion_cost != wanted[pod.uid])
        or (pod.uid not in wanted and pod.deletion_cost < 0)
    )
