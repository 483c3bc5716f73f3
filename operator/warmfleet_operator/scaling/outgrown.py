"""Fleets that proved too small for a load: no shrink returns to them while the load lasts.

Other rules predict what a smaller fleet would need; this one remembers. A shrink that growth had to undo was
a mistake, and repeating it costs the same again: so a number that was asked for is kept for an hour while the
mean load is no lower than it was then, by more than chance explains, and for twice as long with each further
growth that undoes a shrink within that time, up to a day (the exponential back-off that keeps a retry from
being tried too often). A load that comes in bursts keeps the replicas that its bursts need in the same way.
"""

from typing import Final

from msgspec.structs import replace

from warmfleet_operator.scaling.chance import LEAST_MEAN_SECONDS, PEAK_DEVIATIONS, Means
from warmfleet_operator.scaling.demand import Ask
from warmfleet_operator.scaling.memory import HOLD_SECONDS, Outgrown, ScalingMemory
from warmfleet_operator.scaling.ticks import idle_seconds

MOST_HOLD_SECONDS: Final = 86_400.0
MAX_OUTGROWN: Final = 16


def noticed(memory: ScalingMemory, replicas: int, now_seconds: float) -> ScalingMemory:
    """The memory with a growth to so many replicas."""
    memory = _with_hold(memory, now_seconds)
    means = memory.means
    share = max(0.0, 1 - PEAK_DEVIATIONS * means.deviation) if means else 0.0
    newest = Outgrown(
        until_seconds=now_seconds + memory.hold_seconds,
        replicas=replicas,
        least_load_permille=means.load_permille * share if means else 0.0,
        least_tokens=means.tokens * share if means else 0.0,
    )
    kept = [one for one in memory.outgrown if one.until_seconds > now_seconds and not _covers(newest, one)]
    return replace(memory, outgrown=(*kept, newest)[-MAX_OUTGROWN:])


def asks(memory: ScalingMemory, now_seconds: float) -> Ask:
    """What a shrink must leave; nothing for a fleet without requests.

    Of few requests chance explains any lower mean, also that of none.
    """
    if idle_seconds(memory, now_seconds) >= LEAST_MEAN_SECONDS:
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
    chance = 1 + PEAK_DEVIATIONS * means.deviation
    return (
        means.load_permille * chance >= one.least_load_permille and means.tokens * chance >= one.least_tokens
    )


def _with_hold(memory: ScalingMemory, now_seconds: float) -> ScalingMemory:
    """For how long a growth now holds: each shrink that it undoes counts once."""
    shrunk = memory.decreased_seconds
    if shrunk is None or now_seconds - shrunk >= memory.hold_seconds:
        return replace(memory, hold_seconds=HOLD_SECONDS)
    if shrunk == memory.undone_seconds:
        return memory
    return replace(
        memory, undone_seconds=shrunk, hold_seconds=min(2 * memory.hold_seconds, MOST_HOLD_SECONDS)
    )


def _covers(newer: Outgrown, older: Outgrown) -> bool:
    """Whether the newer one keeps as many replicas at every load."""
    return (
        newer.replicas >= older.replicas
        and newer.least_load_permille <= older.least_load_permille
        and newer.least_tokens <= older.least_tokens
    )
