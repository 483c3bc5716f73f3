"""The number of replicas of a Deployment: by the spec, or by autoscaling from the number that it has. Pure.

The operator never writes a ModelDeployment's spec. With mode Active the memory of the number is the
Deployment's own `spec.replicas`; `spec.replicas` of the ModelDeployment is its first size only. A Deployment
of 0 replicas sleeps if it has a note of the number that an operator set last; a suspended one has none, and
begins with its first size again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from warmfleet_contracts.names import FIRST_REPLICAS_ANNOTATION, REPLICAS_ANNOTATION
from warmfleet_contracts.resources.model_deployment import ModelDeploymentSpec
from warmfleet_operator.objects.replica_notes import first_replicas, last_set_replicas
from warmfleet_operator.scaling.decision import ScalingDecision


@dataclass(frozen=True, slots=True)
class ReplicaBounds:
    """What a spec sets for the number of replicas."""

    replicas: int = 1
    mode: str | None = None
    """None: a fixed number."""
    min_replicas: int = 1
    max_replicas: int = 1000
    suspend: bool = False

    @classmethod
    def of(cls, spec: ModelDeploymentSpec) -> Self:
        """The bounds of a checked spec."""
        scaling = spec.autoscaling
        if scaling is None:
            return cls(spec.replicas, suspend=spec.suspend)
        return cls(
            spec.replicas, scaling.mode, scaling.min_replicas, scaling.max_replicas, suspend=spec.suspend
        )

    @property
    def set_by_spec(self) -> int:
        """`spec.replicas` within the bounds."""
        return self.bounded(self.replicas) if self.mode is not None else self.replicas

    def bounded(self, number: int) -> int:
        """`number`, not below the lowest and not above the highest."""
        return max(self.min_replicas, min(number, self.max_replicas))


@dataclass(frozen=True, slots=True)
class ReplicaNumber:
    """The number that a Deployment is to have."""

    replicas: int
    first: int | None = None
    """`spec.replicas` when autoscaling took the number over; None where the spec alone decides."""
    last: int | None = None
    """The last number that an operator set; None where the spec sets it, and of a suspended fleet."""
    external_scaler: str = ""
    """Which number another client wrote, and what became of it; empty if none did."""


def replica_number(
    bounds: ReplicaBounds,
    workers: Mapping[str, Any] | None,
    decision: ScalingDecision | None,
    *,
    known: int | None = None,
    rolls: bool = False,
    without_place: int = 0,
) -> ReplicaNumber:
    """The number of replicas now.

    Args:
        bounds: what the spec sets.
        workers: the Deployment as the API server holds it; None before it exists.
        decision: the newest one of the scaling policy for this Deployment; it counts only for the number that
            it was made from, so that it is carried out once, however often this is asked.
        known: the number that a fleet had by its status: a Deployment that was deleted is made again with
            it. None before the first status, and of a suspended fleet.
        rolls: a rollout is in progress or begins with this write; a shrink of the policy waits for its end.
        without_place: replicas that have found no place for too long. A rollout would wait for them without
            end, so for its sake they are given back.
    """
    current = None if workers is None else int((workers.get("spec") or {}).get("replicas", 1))
    first = None if workers is None else first_replicas(workers)
    if bounds.mode == "Active":
        last = None if workers is None else last_set_replicas(workers)
        decided = known
        if current is not None:
            # None at all, and no note of a number: new, or it was suspended. With a note it sleeps.
            is_scaled = current > 0 or last is not None
            decided = None
            if is_scaled:
                decided = _decided(current, decision, rolls=rolls, without_place=without_place)
        return _active(bounds, current, decided, first, last)
    keeps = bounds.mode is not None and first == bounds.replicas
    kept = first if keeps else None
    if bounds.suspend:
        return ReplicaNumber(0, kept)
    if keeps and current:
        # A change of mode must not move the number: pausing a grown fleet would cut it to its first size.
        return ReplicaNumber(bounds.bounded(current), kept)
    return ReplicaNumber(bounds.set_by_spec, kept)


def _active(
    bounds: ReplicaBounds, current: int | None, decided: int | None, first: int | None, last: int | None
) -> ReplicaNumber:
    """`decided`: None for a fleet that begins with its first size."""
    first = bounds.replicas if first is None else first
    external = ""
    if bounds.suspend:
        return ReplicaNumber(0, first)
    if decided is None:
        number = bounds.set_by_spec
    else:
        number = bounds.bounded(decided)
        if last is not None and last != current and number == current:
            external = f"another client set the Deployment to {current} replicas: scaling goes on from there"
    if bounds.replicas != first:
        external = (
            f"another client set spec.replicas from {first} to {bounds.replicas}, which has no effect while "
            "spec.autoscaling.mode is Active"
        )
    # A number of another client becomes none of the operator's by being kept.
    return ReplicaNumber(number, first, number if last is None or number != current else last, external)


def _decided(current: int, decision: ScalingDecision | None, *, rolls: bool, without_place: int) -> int:
    if rolls and without_place:
        return max(1, current - without_place)  # a fleet without any place keeps asking for one
    if decision is None or decision.from_replicas != current or (rolls and decision.to_replicas < current):
        return current
    return decision.to_replicas


def with_number(workers: Mapping[str, Any], number: ReplicaNumber, replicas: int) -> dict[str, Any]:
    """A desired Deployment with `replicas` on its way to `number`, and what the next operator has to know."""
    metadata = workers["metadata"]
    noted = dict(metadata.get("annotations") or {})
    if number.first is not None:
        noted[FIRST_REPLICAS_ANNOTATION] = str(number.first)
        # While victims are being marked the number in the cluster is still the one before.
        last = number.last if number.last is None or replicas == number.replicas else replicas
        noted[REPLICAS_ANNOTATION] = "" if last is None else str(last)
    return {
        **workers,
        "metadata": {**metadata, **({"annotations": noted} if noted else {})},
        "spec": {**workers["spec"], "replicas": replicas},
    }
