"""A decision, its reason, and the numbers from which alone it follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class ScalingReason(StrEnum):
    """Why the wanted number is as it is."""

    DEMAND_ABOVE_SUPPLY = "DemandAboveSupply"
    LATENCY_ABOVE_TARGET = "LatencyAboveTarget"
    CAPACITY_MISSES = "CapacityMisses"
    REQUESTS_HELD = "RequestsHeld"
    DEMAND_BELOW_SUPPLY = "DemandBelowSupply"
    IDLE = "Idle"
    BELOW_MINIMUM = "BelowMinimum"
    ABOVE_MAXIMUM = "AboveMaximum"
    STEADY = "Steady"
    REPLICAS_SET = "ReplicasSet"
    """Of advice alone: another client changed the number of replicas."""
    SHRINK_WITHDRAWN = "ShrinkWithdrawn"
    """Of advice alone: a shrink was taken back before it was carried out."""


class LimitingRule(StrEnum):
    """What kept the number from the one that signals asked for."""

    NONE = ""
    MINIMUM = "MinReplicas"
    MAXIMUM = "MaxReplicas"
    RATE = "ScaleUpRate"
    STABILIZATION = "Stabilization"
    CAPACITY_PENDING = "CapacityPending"
    SIGNALS_MISSING = "SignalsMissing"
    ONE_AT_A_TIME = "OneAtATime"
    ROLLOUT = "RolloutInProgress"
    NOT_READY = "ReplicaNotReady"
    STOPPING = "ReplicaStopping"
    PERIOD = "ScaleDownPeriod"
    PANIC = "Panic"
    CACHE_VALUE = "CacheValue"


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What the cluster shows of the replicas at one tick."""

    spec_replicas: int
    """Of the Deployment, by any writer."""
    ready: int
    pending: int = 0
    """Wanted and not ready."""
    unschedulable: int = 0
    """Of the pending ones those that found no node for too long, or that a quota refused."""
    in_rollout: bool = False
    stopping: int = 0
    """Pods that drain or end."""
    set_by_another: bool = False
    """By the operator's note on the Deployment, `spec_replicas` is another client's. False without a note."""


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """Whole numbers, so that their text in a status is exact. `decide.choose` reads nothing else."""

    spec_replicas: int = 0
    ready_replicas: int = 0
    pending_replicas: int = 0
    unschedulable_replicas: int = 0
    stopping_replicas: int = 0
    rollouts: int = 0
    """1 during a rollout."""
    missing_replicas: int = 0
    missing_routers: int = 0
    known_routers: int = 0
    blind: int = 0
    """1 while nothing is known that could move the number."""
    demand_tokens: int = 0
    supply_tokens: int = 0
    """Of one replica."""
    demand_sequences: int = 0
    supply_sequences: int = 0
    """Of one replica."""
    demand_compute_permille: int = 0
    """In 1/1000 of one replica's time."""
    supply_compute_permille: int = 1000
    first_token_ms: int = 0
    """The predicted percentile, with the replicas that are ready or will be; 0: unknown."""
    inter_token_ms: int = 0
    """The same between tokens."""
    hit_percent: int = 0
    """Of prompt tokens, those that were cached."""
    capacity_miss_percent: int = 0
    """Of prompt tokens, those that were evicted and asked for again."""
    demand_replicas: int = 0
    """What tokens, sequences and compute ask for, chance excluded; 0: nothing."""
    misses_replicas: int = 0
    """What the rule for capacity misses asks for."""
    first_token_replicas: int = 0
    """What its latency target asks for; 0: nothing."""
    first_token_needed: int = 0
    """What a shrink must leave for it."""
    inter_token_replicas: int = 0
    inter_token_needed: int = 0
    late_load_replicas: int = 0
    """What keeps the load no higher than the one at which a latency target was missed; 0: nothing."""
    late_load_permille: int = 0
    """That load, in 1/1000 of what a replica computes; 0: unknown."""
    waiting_requests: int = 0
    """Queued or held in routers."""
    idle_seconds: int = 0
    """-1: a request is somewhere."""
    observed_seconds: int = 0
    """Without a gap."""
    watched_seconds: int = 0
    """In which the demand was known, but for short gaps."""
    stable_growth: int = 0
    """The lowest number asked for within the time of stabilization."""
    stable_need: int = 0
    """The highest number that was needed for a while within the time of stabilization, or is needed now."""
    growth_limit: int = 0
    """Most replicas by the rate of growth."""
    changed_seconds: int = -1
    """Since the number of replicas changed; -1: not seen."""
    panic: int = 0
    """1: demand far above ready supply now; 2: within its time after it."""
    rising: int = 0
    """1 while a demand is above its mean by more than chance explains in one of twenty moments.

    For half a minute more, and for the time of stabilization at most.
    """
    victim_loss_ms: int = 0
    """Compute time of what only the victim holds."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The wanted number of replicas at one tick, and why."""

    at_seconds: float
    from_replicas: int
    to_replicas: int
    reason: ScalingReason
    recommendations: Mapping[str, int]
    """By signal: what it alone would do."""
    limit: LimitingRule
    inputs: DecisionInputs
    victim: str | None = None
    """Uid of the replica that a shrink takes first; None unless `to_replicas` is lower."""
