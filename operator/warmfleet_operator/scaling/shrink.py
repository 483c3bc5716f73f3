"""Which replica a shrink takes, and what that costs.

The victim holds the least of what only it holds: tokens of prompts per second that its blocks save, by their
rate of reuse. What is lost is computed again at most once per token, and no more than its reuse within the
payback time asks for; an idle replica saves that whole time. A replica goes when it saves more than twice of
what it loses.
"""

from dataclasses import dataclass
from typing import Final

from warmfleet_contracts.cache.fleet_totals import ReplicaTotals
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import FleetSignals

SAFETY: Final = 2
"""What is saved must be this many times what is lost."""


@dataclass(frozen=True, slots=True)
class Victim:
    """The replica whose end costs least."""

    uid: str
    loss_ms: int
    """Compute time of the fleet for what only this replica holds."""


def victim_of(policy: AutoscalingPolicy, signals: FleetSignals, prefill_rate: float) -> Victim | None:
    """The victim of a shrink now; None if no replica is known."""
    if not signals.replicas:
        return None
    replica = min(signals.replicas, key=lambda item: (unique_value(item), item.uid))
    if prefill_rate <= 0:
        return Victim(replica.uid, 0)
    held = replica.unique_blocks * replica.block_size_tokens
    reused = replica.unique_value_tokens_per_second * policy.payback_seconds
    return Victim(replica.uid, round(1000 * min(held, reused) / prefill_rate))


def unique_value(replica: ReplicaTotals) -> tuple[float, int, int]:
    """What only it holds, in tokens that are reused per second; among equals all that it holds, then live.

    Routers count reuse every half a minute: until then a replica that has just got its first prefixes equals
    an empty one.
    """
    return (
        replica.unique_value_tokens_per_second,
        replica.pinned_tokens + replica.evictable_tokens,
        replica.pinned_tokens + replica.queued_uncached_tokens,
    )


def removal_order(
    uid: str,
    report: ReplicaTotals | None,
    *,
    ready: bool,
    created_seconds: float,
    first: str | None,
) -> tuple[object, ...]:
    """A sort key: of several replicas the one with the lowest goes first.

    Those that serve nothing go first, then the one that the policy chose, then the one whose cache is worth
    least, and of equals the newest.

    Args:
        uid: of the replica.
        report: its newest; None: it holds nothing that is known.
        ready: whether it serves.
        created_seconds: when it was, on any clock.
        first: uid of the one that the policy chose.
    """
    value = unique_value(report) if report is not None else (0.0, 0, 0)
    return (ready, uid != first, value, -created_seconds)
