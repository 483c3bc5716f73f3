"""Replicas for the cache: tokens that were computed again because a replica had to evict them.

Only capacity misses count; compulsory, lost and rollout misses are no reason to grow, and placement misses
are the router's. Of n replicas each gets n / (n + k) of its requests when k more share them, as if its cache
were k / n larger: so k more spare the misses of no greater depth, a stretch of the miss ratio curve (Mattson
et al. 1970). A k beyond 1 matters where a set of prompts is read in turns: one more replica spares nothing
then until all of it fits (the look-ahead of utility-based cache partitioning; Qureshi and Patt 2006).

Tokens that are not computed again save two things, and each has its price. Compute: k replicas are paid for
by k replicas' time. And time to the first token: a target for it is how long it may be, and within that a
shorter one is worth nothing more; without one `percent` is the user's word, and a replica is worth that share
of the prompt tokens that a replica is sent, at a low rate, too.

All this counts in the mean of the policy's time, as few requests vary by chance; in it the caches are full
and no replica starts, as what was added has to be filled before its effect shows. After a shrink a smaller
fleet caches anew first. A growth takes its own reason away, so it is remembered: it is kept for as long as
others (`outgrown`), by the rate of requests.

Routers that measure no depths report none: nothing is worth a replica then.
"""

from itertools import zip_longest
from typing import Final

from msgspec.structs import replace

from warmfleet_contracts.cache.fleet_totals import CACHE_DEPTHS, within_depth
from warmfleet_operator.scaling.decision import ReplicaState
from warmfleet_operator.scaling.demand import Ask, Demand
from warmfleet_operator.scaling.memory import GrownForCache, MissMeans, ScalingMemory
from warmfleet_operator.scaling.outgrown import hold_seconds
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.signals import FleetSignals, Traffic
from warmfleet_operator.scaling.ticks import idle_seconds

FULL_PERCENT: Final = 85
"""Of the fleet's KV memory, pinned or cached."""
WORTH_REPLICAS: Final = 1.0
"""Of a replica's time, spared by each replica that is added: then it costs nothing."""
LEAST_REQUESTS: Final = 10
"""Within the time of the rule: of fewer nothing follows."""
MOST_AHEAD: Final = 8
"""Replicas that are looked ahead for together."""


def miss_percent(signals: FleetSignals) -> int:
    """Capacity misses in percent of prompt tokens."""
    traffic = signals.traffic
    if not traffic.prompt_tokens:
        return 0
    return min(100, 100 * traffic.misses.capacity // traffic.prompt_tokens)


def noticed(
    policy: AutoscalingPolicy,
    memory: ScalingMemory,
    signals: FleetSignals,
    demand: Demand,
    state: ReplicaState,
    *,
    now_seconds: float,
    elapsed_seconds: float,
) -> ScalingMemory:
    """The memory with this tick in the means of misses: they begin anew when replicas change or have room."""
    if not policy.capacity_misses_enabled or state.pending or not state.ready:
        return replace(memory, misses=None)
    if not signals.complete or not signals.traffic.seconds:
        return memory
    if not _are_full(signals):
        return replace(memory, misses=None)
    known = memory.misses
    if known is None or known.ready != state.ready:
        known = MissMeans(since_seconds=now_seconds, ready=state.ready)
    # What a tick knows of the traffic is of some time, too: that must not have begun before.
    observed = now_seconds - known.since_seconds - signals.traffic.seconds
    if observed >= 0:
        longest = min(max(observed, elapsed_seconds), policy.capacity_miss_seconds)
        known = _followed(known, signals.traffic, elapsed_seconds / longest if longest else 1.0)
        known = replace(known, are_worth=_are_worth(policy, known, demand))
    return replace(memory, misses=known)


def grown(
    policy: AutoscalingPolicy, memory: ScalingMemory, replicas: int, now_seconds: float
) -> ScalingMemory:
    """The memory with a growth to so many replicas for capacity misses."""
    means = memory.means
    return replace(
        memory,
        grown_for_cache=GrownForCache(
            until_seconds=now_seconds + hold_seconds(policy, memory),
            replicas=replicas,
            least_requests_per_second=means.requests_per_second * means.lowest_ratio if means else 0.0,
        ),
    )


def asks(policy: AutoscalingPolicy, memory: ScalingMemory, replicas: int, now_seconds: float) -> Ask:
    """One more replica for capacity misses that lasted, and none fewer while one more would be worth it."""
    kept, misses = _kept_replicas(policy, memory, now_seconds), memory.misses
    if misses is None or not misses.are_worth or replicas <= 0:
        return Ask(0, kept)
    shrunk = memory.decreased_seconds
    if shrunk is not None and now_seconds - shrunk < policy.pause_after_shrink_seconds:
        return Ask(0, kept)
    if now_seconds - misses.since_seconds < policy.capacity_miss_seconds:
        return Ask(0, max(replicas, kept))
    return Ask(replicas + 1, max(replicas, kept))


def _kept_replicas(policy: AutoscalingPolicy, memory: ScalingMemory, now_seconds: float) -> int:
    """What the last growth for capacity misses still keeps; nothing for a fleet without requests."""
    last, means = memory.grown_for_cache, memory.means
    if not policy.capacity_misses_enabled or last is None or now_seconds >= last.until_seconds:
        return 0
    if idle_seconds(memory, now_seconds) >= policy.down_stabilization_seconds:
        return 0
    if means is None:
        return last.replicas
    highest = means.requests_per_second * means.highest_ratio
    return last.replicas if highest >= last.least_requests_per_second else 0


def _are_full(signals: FleetSignals) -> bool:
    capacity = sum(replica.capacity_tokens for replica in signals.replicas)
    used = sum(replica.pinned_tokens + replica.evictable_tokens for replica in signals.replicas)
    return 100 * used >= FULL_PERCENT * capacity


def _followed(known: MissMeans, traffic: Traffic, gain: float) -> MissMeans:
    """The means after another tick."""

    def mean(before: float, tokens: float) -> float:
        return before + gain * (tokens / traffic.seconds - before)

    depths = zip_longest(known.depths, traffic.misses.capacity_depths, fillvalue=0)
    return replace(
        known,
        requests=mean(known.requests, traffic.requests),
        prompt_tokens=mean(known.prompt_tokens, traffic.prompt_tokens),
        capacity=mean(known.capacity, traffic.misses.capacity),
        depths=tuple(mean(before, tokens) for before, tokens in depths),
    )


def _are_worth(policy: AutoscalingPolicy, means: MissMeans, demand: Demand) -> bool:
    if means.requests * policy.capacity_miss_seconds < LEAST_REQUESTS:
        return False
    if 100 * means.capacity < policy.capacity_miss_percent * means.prompt_tokens:
        return False
    price = _price(policy, means, demand)
    most = min(round(means.ready * CACHE_DEPTHS[-1]), MOST_AHEAD)
    return price > 0 and any(
        within_depth(means.depths, more / means.ready) >= more * price for more in range(1, most + 1)
    )


def _price(policy: AutoscalingPolicy, means: MissMeans, demand: Demand) -> float:
    """Tokens per second that each replica must spare; 0: not known."""
    compute = WORTH_REPLICAS * demand.prefill_rate
    if policy.first_token is not None:
        return compute
    stated = policy.capacity_miss_percent * means.prompt_tokens / (100 * means.ready)
    return min(compute, stated) if compute else stated
