"""What decides a number of replicas, and what it is given every tick."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from warmfleet_contracts.cache.fleet_totals import FleetTotals
from warmfleet_operator.scaling.decision import ReplicaState, ScalingDecision

TICK_SECONDS: Final = 2.0
"""From one decision to the next."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What the operator knows at one time."""

    now_seconds: float
    replicas: ReplicaState
    ready_uids: Sequence[str]
    totals: FleetTotals
    """Of the one router."""
    arrived_requests: int
    """So far, as an ingress counts them; for the policies of other autoscalers."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A number of replicas, and the one that a shrink takes first; the newest if None."""

    replicas: int
    victim: str | None = None
    decision: ScalingDecision | None = None
    """Of the operator's policy, with its reason; None of others."""


class Autoscaler(Protocol):
    """Decides once per `TICK_SECONDS`; remembers what it needs."""

    def wanted(self, tick: Tick) -> Wanted: ...


class FixedReplicas:
    """Leaves the number as it is."""

    def wanted(self, tick: Tick) -> Wanted:
        return Wanted(tick.replicas.spec_replicas)
