"""What the policy remembers between two ticks. Bounded; an empty one is safe.

After a restart it is empty: nothing shrinks before the windows have been observed again, and the number of
replicas that is wanted follows from the Deployment's own and from live signals.
"""

from typing import Final

import msgspec

from warmfleet_operator.scaling.chance import Means
from warmfleet_operator.scaling.entries import Entries
from warmfleet_operator.scaling.experience import Span

LATE_TICKS: Final = 5
MAX_GROWTHS: Final = 32


class Outgrown(msgspec.Struct, frozen=True, kw_only=True):
    """A number of replicas that was asked for, at a load for which fewer had not sufficed."""

    until_seconds: float
    """Kept until then."""
    replicas: int
    least_load_permille: float
    """While the mean load of arrivals is no lower, but for chance,"""
    least_tokens: float
    """and neither is the mean demand of tokens."""


class MissMeans(msgspec.Struct, frozen=True, kw_only=True):
    """Means of the same ready replicas over the time of the rule for capacity misses; per second."""

    since_seconds: float
    ready: int
    requests: float = 0.0
    prompt_tokens: float = 0.0
    capacity: float = 0.0
    """Tokens."""
    depths: tuple[float, ...] = ()
    """Of `capacity`, as `MissTokens.capacity_depths`."""
    are_worth: bool = False
    """Whether they ask for one more replica."""


class GrownForCache(msgspec.Struct, frozen=True, kw_only=True):
    """The last growth for capacity misses."""

    until_seconds: float
    """Kept until then."""
    replicas: int
    least_requests_per_second: float
    """While the mean rate of requests is no lower. What they compute is no measure: the growth spares it."""


class ScalingMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Times are those of `decide`'s clock. A struct: a tick replaces several fields one by one."""

    last_seconds: float | None = None
    """Of the last tick; None before the first."""
    since_seconds: float = 0.0
    """Every tick since then was observed without a gap."""
    spec_replicas: int = 0
    """At the last tick."""
    growths: Entries = ()
    """Time and number of replicas that were added, by any client, within the period of growth."""
    changed_seconds: float | None = None
    """The number of replicas changed last."""
    decreased_seconds: float | None = None
    shrunk_from: int = 0
    """The number before the last shrinks, between which nothing was added."""
    growth: Entries = ()
    """The lowest number that signals asked for, within the time for which growth must be asked."""
    lasting_need: Entries = ()
    """The lowest number that signals needed within the time for which a need has to last; the last: now."""
    need: Entries = ()
    """The highest need that lasted, within the time after which a shrink may follow."""
    spans: tuple[Span, ...] = ()
    """The demand of the last windows, oldest first."""
    watched_since_seconds: float | None = None
    """Since then the demand was known, but for short gaps."""
    panic_until_seconds: float | None = None
    busy_seconds: float | None = None
    """The last tick with a request anywhere."""
    misses: MissMeans | None = None
    """None while replicas start, or their caches are not full."""
    grown_for_cache: GrownForCache | None = None
    late: tuple[bool, ...] = ()
    """Of the last ticks: whether a percentile was predicted above its target."""
    supply_samples: Entries = ()
    """Time, and tokens that a replica held while its queue waited for memory."""
    supply_tokens: int = 0
    """Supply of a replica when one reported last."""
    supply_sequences: int = 0
    """Its seats then."""
    compute_samples: tuple[int, ...] = ()
    """Load in 1/1000 of a replica's measured speed, while work waited at every replica."""
    fewest_ready: Entries = ()
    """The lowest number of ready replicas, within the time of percentiles."""
    late_goals: tuple[int, int] = (0, 0)
    """The targets in milliseconds that `late_loads` missed: first token, between tokens; 0: none."""
    late_loads: Entries = ()
    """Time, and load in 1/1000 of what the replicas compute, when a latency target was missed."""
    means: Means | None = None
    """Of the demand; None before it was known."""
    risen_since_seconds: float | None = None
    """A demand has been above its mean since then, at every tick."""
    rise_began_seconds: float | None = None
    """The same, with pauses of less than `TRAFFIC_SECONDS`."""
    last_risen_seconds: float | None = None
    """The last tick at which a demand was above its mean."""
    busy_since_seconds: float | None = None
    """Work has waited at every replica since then, or since the last sample."""
    outgrown: tuple[Outgrown, ...] = ()
    """Oldest first."""
    hold_factor: int = 1
    """For how many times the usual time a growth is kept."""
    undone_seconds: float | None = None
    """The last shrink that a growth undid."""
    low_since_seconds: float | None = None
    """The load has been low since then."""
    first_token_floor_ms: float | None = None
    """The percentile that is left without load; None before it was seen."""
    inter_token_floor_ms: float | None = None
