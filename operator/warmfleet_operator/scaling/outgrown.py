"""Fleets that proved too small for a load: no shrink returns to them while the load lasts.

Other rules predict what a smaller fleet would need; this one remembers. A shrink that growth had to undo was
a mistake, and repeating it costs the same again: so a number that was asked for is kept for an hour, with the
default stabilization of five minutes, while the mean load is no lower than it was then, by more than chance
explains, and for twice as long with each further growth that undoes a shrink within that time, up to a day
(the exponential back-off that keeps a retry from being tried too often).

Growth for a load that rises shows that fewer replicas do not suffice for the risen load, and nothing of the
one before it, which the mean still is. Only growth that undoes a shrink shows that fewer were a mistake at
the mean load, too: then the load comes in bursts, and what was there before the shrink is kept in between.
What they need beyond that is kept for the risen load, as of any other rise.
"""

from typing import Final

from msgspec.structs import replace

from warmfleet_operator.scaling.chance import LEAST_MEAN_SECONDS, Means
from warmfleet_operator.scaling.demand import Ask
from warmfleet_operator.scaling.memory import Outgrown, ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_operator.scaling.ticks import idle_seconds

HOLD_WINDOWS: Final = 12
"""A growth is kept for so many stabilization windows of a shrink: short ones ask for frequent attempts."""
MOST_FACTOR: Final = 24
MAX_OUTGROWN: Final = 16


def noticed(
    policy: AutoscalingPolicy, memory: ScalingMemory, now: Means | None, replicas: int, now_seconds: float
) -> ScalingMemory:
    """The memory with a growth to so many replicas; `now` is the demand at this tick, if it is known."""
    memory = _with_factor(policy, memory, now_seconds)
    means = memory.means
    if means is None:
        return memory  # no later load could be compared with it
    until_seconds = now_seconds + hold_seconds(policy, memory)
    load_permille, tokens = means.load_permille * means.lowest_ratio, means.tokens * means.lowest_ratio
    undone = min(replicas, memory.shrunk_from) if memory.hold_factor > 1 else 0
    levels = [(undone, load_permille, tokens)] if undone else []
    if undone < replicas:
        if now is not None:
            load_permille = max(load_permille, means.load_level.risen(now.load_permille, now.requests))
            tokens = max(tokens, means.tokens_level.risen(now.tokens, now.sequences))
        levels.append((replicas, load_permille, tokens))
    for number, least_load_permille, least_tokens in levels:
        if means.seconds < LEAST_MEAN_SECONDS and least_load_permille <= 0 and least_tokens <= 0:
            continue  # a mean that has begun, of so few requests that chance explains any lower one
        newest = Outgrown(
            until_seconds=until_seconds,
            replicas=number,
            least_load_permille=least_load_permille,
            least_tokens=least_tokens,
        )
        kept = [
            one for one in memory.outgrown if one.until_seconds > now_seconds and not _covers(newest, one)
        ]
        memory = replace(memory, outgrown=(*kept, newest)[-MAX_OUTGROWN:])
    return memory


def asks(policy: AutoscalingPolicy, memory: ScalingMemory, now_seconds: float) -> Ask:
    """What a shrink must leave; nothing for a fleet without requests.

    Of few requests chance explains any lower mean, also that of none.
    """
    if idle_seconds(memory, now_seconds) >= policy.down_stabilization_seconds:
        return Ask()
    kept = [
        one.replicas
        for one in memory.outgrown
        if one.until_seconds > now_seconds and _lasts(one, memory.means)
    ]
    return Ask(0, max(kept, default=0))


def _lasts(one: Outgrown, means: Means | None) -> bool:
    """Whether the load is as high as it was then, or may be."""
    if means is None:
        return True
    highest = means.highest_ratio
    return (
        means.load_permille * highest >= one.least_load_permille
        and means.tokens * highest >= one.least_tokens
    )


def hold_seconds(policy: AutoscalingPolicy, memory: ScalingMemory) -> float:
    """For how long a growth now is kept."""
    return memory.hold_factor * HOLD_WINDOWS * policy.down_stabilization_seconds


def _with_factor(policy: AutoscalingPolicy, memory: ScalingMemory, now_seconds: float) -> ScalingMemory:
    """For how many times the usual time a growth now is kept: each shrink that it undoes counts once."""
    shrunk = memory.decreased_seconds
    if shrunk is None or now_seconds - shrunk >= hold_seconds(policy, memory):
        return replace(memory, hold_factor=1)
    if shrunk == memory.undone_seconds:
        return memory
    return replace(memory, undone_seconds=shrunk, hold_factor=min(2 * memory.hold_factor, MOST_FACTOR))


def _covers(newer: Outgrown, older: Outgrown) -> bool:
    """Whether the newer one keeps as many replicas at every load."""
    return (
        newer.replicas >= older.replicas
        and newer.least_load_permille <= older.least_load_permille
        and newer.least_tokens <= older.least_tokens
    )
