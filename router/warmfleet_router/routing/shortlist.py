"""Finds the workers where a request may cost least, without pricing all of them.

Workers are priced in the order of the least that the request can cost there (`cost.PriceFloor`), until that
is more than the cheapest one found so far and what counts as equal to it. So the first of them, and every
equal of it, are those of a ranking of all workers.
"""

import heapq
import math
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from warmfleet_router.routing.policies import equality_limit_ms

LISTED_WORKERS: Final = 16
"""Enough that one of them nearly always has capacity, and for comparing a slow worker with its peers."""
_ROUNDING: Final = 1 + 1e-9


class Shortlist(msgspec.Struct, frozen=True):
    """The workers among which a request's place is decided."""

    uids: tuple[str, ...]
    certain: int
    """So many of them, ranked, are the first of a ranking of all workers, in the same order."""
    unlisted_equals: int = 0
    """Workers that cost as little as the cheapest, and come after those that are listed."""


def shortlist(
    floors: Mapping[str, float],
    price: Callable[[str], float],
    weight: Callable[[str], int],
    *,
    is_price: Callable[[str], bool] = lambda _: False,
    count: int = LISTED_WORKERS,
) -> Shortlist:
    """The `count` cheapest of the workers in `floors`, by the least that the request costs there.

    `price` is a worker's cost in milliseconds, `weight` decides among equals: the largest is first.
    `is_price` returns for a worker whether its cost is in `floors`, but for rounding.
    """
    costs: dict[str, float] = {}
    best_ms, limit_ms, least_unpriced_ms = math.inf, math.inf, math.inf
    for uid in sorted(floors, key=floors.__getitem__):
        floor_ms = floors[uid]
        if floor_ms > limit_ms * _ROUNDING and len(costs) >= count:
            least_unpriced_ms = floor_ms / _ROUNDING
            break
        if best_ms < floor_ms * _ROUNDING and floor_ms * _ROUNDING**2 < limit_ms and is_price(uid):
            costs[uid] = floor_ms  # what follows is no cheaper than the best: the limit stays
            continue
        cost_ms = costs[uid] = price(uid)
        if cost_ms < best_ms:
            best_ms, limit_ms = cost_ms, equality_limit_ms(cost_ms)
    equals = [uid for uid, cost_ms in costs.items() if cost_ms <= limit_ms]
    if len(equals) > count:
        first = heapq.nsmallest(count, [(-weight(uid), uid) for uid in equals])
        return Shortlist(tuple([uid for _, uid in first]), count, len(equals) - count)
    others = sorted([(cost_ms, uid) for uid, cost_ms in costs.items() if cost_ms > limit_ms])
    room = count - len(equals)
    # Where two cost the same their weights decide, and one of them may not be listed or not be priced.
    unlisted_ms = min([least_unpriced_ms, *(cost_ms for cost_ms, _ in others[room : room + 1])])
    certain = len(equals) + sum(cost_ms < unlisted_ms for cost_ms, _ in others[:room])
    return Shortlist((*equals, *(uid for _, uid in others[:room])), certain)
