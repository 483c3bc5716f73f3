"""What `warmfleet top` shows of one model at one moment: values, whose field names are those of the JSON."""

from collections.abc import Mapping
from dataclasses import dataclass

from warmfleet_operator.scaling.decision import ScalingDecision


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica, by its newest report to a router."""

    name: str
    state: str
    """Ready, Draining, NotReady or Unknown (it has not reported)."""
    capacity_tokens: int = 0
    pinned_tokens: int = 0
    """Blocks that live sequences hold."""
    cached_tokens: int = 0
    """Blocks that no sequence holds: free capacity."""
    running_sequences: int = 0
    waiting_sequences: int = 0
    queued_tokens: int = 0
    """Prompt tokens that it has to compute before it decodes them."""
    unique_value_tokens_per_second: float = 0.0
    """Prompt tokens per second that its blocks save and no other replica's would."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a latency over the last minute, in milliseconds; None without requests."""

    p50: float | None
    p90: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model's fleet."""

    names: tuple[str, ...]
    replicas: tuple[ReplicaView, ...]
    routers: int
    """That answered."""
    seconds: float
    """How far back the counts of tokens go; 0 at the first reading."""
    prompt_tokens: int
    cached_tokens: int
    misses: Mapping[str, int]
    """Prompt tokens that were computed, by why they were not cached: the names of `MissTokens`."""
    queued_requests: int
    queued_tokens: int
    first_token: Percentiles
    inter_token: Percentiles
    decision: ScalingDecision | None
    """None without a policy."""
    remark: str = ""
    """Which data are missing; empty if none are."""

    @property
    def ready(self) -> int:
        """Replicas that get requests."""
        return sum(replica.state == "Ready" for replica in self.replicas)

    def percent_of_capacity(self, tokens: int) -> int | None:
        """`tokens` in percent of the KV memory of all replicas; None while that is unknown."""
        capacity = sum(replica.capacity_tokens for replica in self.replicas)
        return round(100 * tokens / capacity) if capacity else None
