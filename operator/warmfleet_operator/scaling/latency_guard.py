"""Replicas that keep a latency's percentile within its target, by the percentile that is predicted for them.

A percentile has a part that stays without load and one that waits cause. The second scales with
rho / (1 - rho) of the fleet's compute load, as in a queue with one server (M/G/1); with 1 / n where no queue
causes it, as between tokens, or while the load is unknown. The first part is what was seen while the load was
low: where that alone misses the target, no number of replicas meets it, and none is asked for. The prompt
tokens that wait now are a forecast of their own: the next request waits until they are computed.

A percentile of few long prompts moves by itself, and close to its target no number of replicas would seem
enough. So the guard asks for no more replicas than bring the load down to `LOW_LOAD`, where nothing queues,
or, while the load is unknown, than there are sequences; and only where more requests miss the target than
chance alone would explain (a one-sided binomial test, by its normal approximation). What a shrink must leave
is by the same percentile without chance: what growth would not ask for keeps no replica.
"""

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Final

from warmfleet_contracts.cache.fleet_totals import LatencyHistogram
from warmfleet_operator.scaling.demand import Ask

LOW_LOAD: Final = 0.5
"""Below this load a percentile counts as the part that stays."""
MOST_LOAD: Final = 0.95
LEAST_LOAD: Final = 0.02
FLOOR_GAIN: Final = 0.1
"""How fast the part that stays follows what is seen at low load."""
CHANCE_DEVIATIONS: Final = 1.645
"""Standard deviations: fewer than one in twenty fleets that meet their target exceed it by more."""
_MOST_REPLICAS: Final = 1000


@dataclass(frozen=True, slots=True)
class LatencyView:
    """What is known of a latency at one tick."""

    percentile_ms: float
    """Of the last minute, at `ready` replicas; 0 without any request."""
    certain_ms: float
    """What it is at least, chance excluded."""
    floor_ms: float
    """The part that stays without load."""
    load_permille: int
    """Of the fleet, in 1/1000 of one replica; -1: unknown."""
    ready: int = 0
    backlog_ms: float = 0.0
    """Time in which one replica computes what waits."""
    queues: bool = True
    """Whether a queue causes the part that load causes."""

    @property
    def low(self) -> bool:
        """Whether the load is known and low."""
        return 0 <= self.load_permille < 1000 * LOW_LOAD * self.ready


def floor_of(known_ms: float | None, view: LatencyView, *, low: bool) -> float | None:
    """The part that stays, with this tick's percentile; None before a low load was seen.

    `low`: the load was low for all requests of the percentile.
    """
    percentile_ms = view.percentile_ms
    if percentile_ms <= 0:
        return known_ms
    if known_ms is None:
        return percentile_ms if low else None
    if not low:
        return min(known_ms, percentile_ms)
    return known_ms + FLOOR_GAIN * (percentile_ms - known_ms)


def certain_ms(histogram: LatencyHistogram, percent: int) -> float:
    """What a percentile is at least, by a sample of requests; 0 without any."""
    count, share = sum(histogram.counts), percent / 100
    if not count:
        return 0.0
    least = share - CHANCE_DEVIATIONS * sqrt(share * (1 - share) / count)
    return histogram.percentile_ms(max(least, 0.0)) or 0.0


def is_late(view: LatencyView, target_ms: int) -> bool:
    """Whether the target is missed now, or will be by what waits."""
    waits_ms = view.floor_ms + view.backlog_ms / max(view.ready, 1) if view.backlog_ms else 0.0
    return max(view.certain_ms, waits_ms) > target_ms


def predicted_ms(view: LatencyView, replicas: int) -> float:
    """The percentile with that many ready replicas; falls as they grow."""
    if replicas <= 0:
        return 0.0
    waits = max(0.0, view.percentile_ms - view.floor_ms) * _scale(view, replicas)
    return min(view.floor_ms, view.percentile_ms or view.floor_ms) + max(waits, view.backlog_ms / replicas)


def asks(
    view: LatencyView, target_ms: int, margin_percent: int, replicas: int, *, late: bool, most: int
) -> Ask:
    """Replicas for the target, at most `most`.

    Args:
        view: the latency now.
        target_ms: what the percentile may be.
        margin_percent: of the target; a shrink must leave the percentile below it.
        replicas: those that are ready or will be.
        late: whether the target was missed often enough to act.
        most: `at_low_load` of what arrives and waits.
    """
    if view.percentile_ms <= 0 and view.backlog_ms <= 0:
        return Ask()
    growth = 0
    if late and replicas < most and view.floor_ms < target_ms < predicted_ms(view, replicas):
        growth = min(_fewest(view, target_ms, replicas), most)
    margin_ms = target_ms * margin_percent / 100
    # A shrink must leave what growth would not ask for: what chance explains is neither growth nor need.
    certain = replace(view, percentile_ms=view.certain_ms)
    if view.floor_ms >= margin_ms:
        # The target is not met without load either: what is there stays, as more would not help.
        return Ask(growth, min(replicas, most) if predicted_ms(certain, replicas) > target_ms else 0)
    return Ask(growth, min(_fewest(certain, margin_ms, 0), most))


def at_low_load(load_permille: int, supply_permille: int, sequences: int) -> int:
    """Replicas whose load is `LOW_LOAD`; one for each of `sequences` while the load is unknown (-1).

    A sequence that has a replica to itself waits for no other.
    """
    replicas = sequences if load_permille < 0 else ceil(load_permille / (LOW_LOAD * supply_permille))
    return min(_MOST_REPLICAS, max(1, replicas))


def _fewest(view: LatencyView, limit_ms: float, above: int) -> int:
    """The fewest replicas, more than `above`, with which the percentile is within `limit_ms`."""
    low, high = above, max(above + 1, 1)
    while predicted_ms(view, high) > limit_ms and high < _MOST_REPLICAS:
        low, high = high, min(2 * high, _MOST_REPLICAS)
    while high - low > 1:
        middle = (low + high) // 2
        if predicted_ms(view, middle) > limit_ms:
            low = middle
        else:
            high = middle
    return high


def _scale(view: LatencyView, replicas: int) -> float:
    """Waits with `replicas`, over those with the replicas that are ready."""
    ready = max(1, view.ready)
    if view.load_permille < 0 or not view.queues:
        return ready / replicas
    return _queueing(view.load_permille / replicas) / _queueing(view.load_permille / ready)


def _queueing(load_permille: float) -> float:
    load = min(max(load_permille / 1000, LEAST_LOAD), MOST_LOAD)
    return load / (1.0 - load)
