"""A change of the number of replicas, and why."""

import msgspec

from warmfleet_operator.scaling.decision import ScalingDecision


class ReplicaChange(msgspec.Struct, frozen=True):
    """What an autoscaler changed."""

    at_seconds: float
    """On the simulation's clock."""
    from_replicas: int
    to_replicas: int
    decision: ScalingDecision | None
    """Of the operator's policy, with its reason and the figures that decided; None of others."""
