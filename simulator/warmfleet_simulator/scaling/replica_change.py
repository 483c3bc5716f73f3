"""A change of the number of replicas, and why."""

import msgspec

from warmfleet_operator.scaling.advice import because, explained
from warmfleet_simulator.scaling.autoscaler import Wanted


class ReplicaChange(msgspec.Struct, frozen=True):
    """Reasons are those of the operator's policy. Others give none: all after `to_replicas` is empty."""

    at_seconds: float
    """On the simulation's clock."""
    from_replicas: int
    to_replicas: int
    reason: str
    """A `ScalingReason`."""
    limit: str
    """The `LimitingRule`; empty if none applied."""
    because: str
    """Reason and limit, for people."""
    message: str
    """The figures that decided, as a status of a ModelDeployment has them."""
    recommendations: dict[str, int]
    """By signal: what it alone would do."""


def replica_change(at_seconds: float, from_replicas: int, wanted: Wanted) -> ReplicaChange:
    """What an autoscaler's wish changes."""
    decision = wanted.decision
    if decision is None:
        return ReplicaChange(at_seconds, from_replicas, wanted.replicas, "", "", "", "", {})
    return ReplicaChange(
        at_seconds,
        from_replicas,
        wanted.replicas,
        decision.reason,
        decision.limit,
        because(decision),
        explained(decision),
        dict(decision.recommendations),
    )
