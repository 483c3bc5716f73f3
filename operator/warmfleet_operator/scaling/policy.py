"""Every parameter of the scaling policy: those of a spec, with its defaults, and those that no user sets."""

from dataclasses import dataclass
from typing import Self

from warmfleet_contracts.resources.autoscaling_spec import (
    AutoscalingSpec,
    CapacityMissRule,
    LatencyTarget,
    ScaleDownLimits,
    ScaleUpLimits,
    UtilizationTargets,
    ZeroRule,
)


@dataclass(frozen=True, slots=True)
class LatencyGoal:
    """A percentile of a latency and what it may be."""

    percentile: int
    target_milliseconds: int


@dataclass(frozen=True, slots=True)
class AutoscalingPolicy:
    """What a user may set, and below it what is the same for all."""

    min_replicas: int
    max_replicas: int
    scale_up_percent: int
    scale_down_percent: int
    first_token: LatencyGoal | None
    between_tokens: LatencyGoal | None
    capacity_misses_enabled: bool
    capacity_miss_percent: int
    capacity_miss_seconds: float
    pause_after_shrink_seconds: float
    up_replicas: int
    up_percent: int
    up_period_seconds: float
    up_stabilization_seconds: float
    panic_percent: int
    panic_seconds: float
    down_period_seconds: float
    down_stabilization_seconds: float
    payback_seconds: float
    idle_seconds: float

    gap_seconds: float = 60.0
    """Two ticks further apart than this: what the windows hold no longer counts as observed."""
    backlog_seconds: float = 60.0
    """Replicas are added so that what waits is computed within this time."""
    missing_grace_seconds: float = 30.0
    """Signals that are missing for less are reported to no user."""
    latency_margin_percent: int = 80
    """A shrink must keep predicted percentiles below this share of their target."""

    @property
    def has_latency_goal(self) -> bool:
        """Whether the guard needs percentiles."""
        return self.first_token is not None or self.between_tokens is not None

    @classmethod
    def of(cls, spec: AutoscalingSpec) -> Self:
        """The policy of a checked `spec.autoscaling`."""
        utilization = spec.utilization or UtilizationTargets()
        misses = spec.capacity_misses or CapacityMissRule()
        up, down = spec.scale_up or ScaleUpLimits(), spec.scale_down or ScaleDownLimits()
        zero = spec.zero or ZeroRule()
        return cls(
            min_replicas=spec.min_replicas,
            max_replicas=spec.max_replicas,
            scale_up_percent=utilization.scale_up_percent,
            scale_down_percent=utilization.scale_down_percent,
            first_token=_goal(spec.latency.first_token if spec.latency else None),
            between_tokens=_goal(spec.latency.between_tokens if spec.latency else None),
            capacity_misses_enabled=misses.mode == "Enabled",
            capacity_miss_percent=misses.percent,
            capacity_miss_seconds=misses.window_seconds,
            pause_after_shrink_seconds=misses.pause_after_shrink_seconds,
            up_replicas=up.replicas,
            up_percent=up.percent,
            up_period_seconds=up.period_seconds,
            up_stabilization_seconds=up.stabilization_seconds,
            panic_percent=up.panic_percent,
            panic_seconds=up.panic_seconds,
            down_period_seconds=down.period_seconds,
            down_stabilization_seconds=down.stabilization_seconds,
            payback_seconds=down.payback_seconds,
            idle_seconds=zero.idle_seconds,
        )


def _goal(target: LatencyTarget | None) -> LatencyGoal | None:
    return None if target is None else LatencyGoal(target.percentile, target.target_milliseconds)
