"""`spec.autoscaling`: how the number of replicas follows the demand. Only `maxReplicas` has no default.

The only place of the defaults in code. A part that is absent has those of its members.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from warmfleet_contracts.resources.fields import Resource, Switch


class UtilizationTargets(Resource):
    """Demand in tokens, as percent of what the replicas can hold and compute."""

    scale_up_percent: int = Field(
        default=85, ge=10, le=100, description="Above this percent of the supply a replica is added."
    )
    scale_down_percent: int = Field(
        default=65, ge=5, le=95, description="One replica fewer must stay below this percent."
    )

    @model_validator(mode="after")
    def _hysteresis(self) -> Self:
        if self.scale_down_percent >= self.scale_up_percent:
            raise ValueError(
                f"scaleDownPercent {self.scale_down_percent} is not below scaleUpPercent "
                f"{self.scale_up_percent}"
            )
        return self


class LatencyTarget(Resource):
    """A percentile of a latency, and what it may be."""

    percentile: int = Field(default=95, ge=50, le=99, description="Percent of requests within the target.")
    target_milliseconds: int = Field(ge=1, le=600_000, description="Most milliseconds at that percentile.")


class LatencyTargets(Resource):
    """What callers may wait: at least one of the two."""

    first_token: LatencyTarget | None = Field(default=None, description="From request to first token.")
    between_tokens: LatencyTarget | None = Field(default=None, description="Between two tokens.")

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if not self.chosen("first_token", "between_tokens"):
            raise ValueError("give at least one of firstToken, betweenTokens")
        return self


class CapacityMissRule(Resource):
    """Growth because cached prefixes had to be evicted too early."""

    mode: Switch = Field(default="Enabled", description="Whether capacity misses add replicas.")
    percent: int = Field(default=10, ge=1, le=100, description="Of prompt tokens that missed for capacity.")
    window_seconds: int = Field(default=120, ge=1, le=3600, description="Seconds in whose mean it holds.")
    pause_after_shrink_seconds: int = Field(
        default=300, ge=0, le=86_400, description="Seconds after a shrink in which it adds nothing."
    )


class ScaleUpLimits(Resource):
    """How fast replicas are added."""

    replicas: int = Field(default=2, ge=1, le=1000, description="Replicas that any period may add.")
    percent: int = Field(default=100, ge=1, le=1000, description="Percent of the fleet it may add instead.")
    period_seconds: int = Field(default=30, ge=1, le=3600, description="Length of a period in seconds.")
    stabilization_seconds: int = Field(
        default=10, ge=0, le=3600, description="Seconds for which the demand must last."
    )
    panic_percent: int = Field(
        default=200, ge=110, le=1000, description="Percent of ready supply above which nothing shrinks."
    )
    panic_seconds: int = Field(default=60, ge=1, le=3600, description="Seconds for which that lasts.")


class ScaleDownLimits(Resource):
    """How fast replicas are removed: one at a time."""

    period_seconds: int = Field(default=60, ge=1, le=86_400, description="Seconds between two of them.")
    stabilization_seconds: int = Field(
        default=300, ge=0, le=86_400, description="Seconds for which nothing may have needed the replica."
    )
    payback_seconds: int = Field(
        default=600, ge=1, le=86_400, description="Seconds over which its idle time must outweigh its cache."
    )


class ZeroRule(Resource):
    """When a fleet sleeps, and how long requests wait until it wakes."""

    idle_seconds: int = Field(default=600, ge=1, le=604_800, description="Seconds without any request.")
    hold_seconds: int = Field(default=300, ge=0, le=3600, description="Seconds a request may be held.")


class AutoscalingSpec(Resource):
    """Replicas that follow KV memory pressure, latency and the reason for cache misses."""

    mode: Literal["Active", "Advisory", "Paused"] = Field(
        default="Active", description="Active scales, Advisory only reports, Paused does neither."
    )
    min_replicas: int = Field(default=1, ge=0, le=1000, description="Fewest replicas; 0 = may sleep.")
    max_replicas: int = Field(ge=1, le=1000, description="Most replicas.")
    utilization: UtilizationTargets | None = Field(default=None, description="Demand against supply.")
    latency: LatencyTargets | None = Field(default=None, description="Default: no target.")
    capacity_misses: CapacityMissRule | None = Field(default=None, description="Growth for the cache.")
    scale_up: ScaleUpLimits | None = Field(default=None, description="How fast replicas are added.")
    scale_down: ScaleDownLimits | None = Field(default=None, description="How fast they are removed.")
    zero: ZeroRule | None = Field(default=None, description="When a fleet sleeps; needs minReplicas 0.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"minReplicas {self.min_replicas} is greater than maxReplicas {self.max_replicas}"
            )
        return self

    @model_validator(mode="after")
    def _zero_is_allowed(self) -> Self:
        if self.zero is not None and self.min_replicas > 0:
            raise ValueError(f"zero needs minReplicas 0, and it is {self.min_replicas}")
        return self
