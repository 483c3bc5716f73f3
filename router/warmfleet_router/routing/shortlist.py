"""Finds the workers where a request may cost least, without looking at all of them.

Which worker is cheapest depends on the length of the prompt, so no order of the workers holds for every
request. But those with about the same price per token, idle price and free tokens cost about the same at any
length: they are a class (`PriceClasses`), and the least of each of the three gives a bound for all of them. A
decision bounds each class, and looks into one only where the bound is not more than what it found so far.

Workers are priced in the order of the least that the request can cost there (`cost.PriceFloor`), until that
is more than the cheapest one found so far and what counts as equal to it. So the first of them, and every
equal of it, are those of a ranking of all workers.
"""

import bisect
import heapq
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from warmfleet_router.routing.cost import PriceFloor, Work
from warmfleet_router.routing.policies import equality_limit_ms

LISTED_WORKERS: Final = 16
"""Enough that one of them nearly always has capacity, and for comparing a slow worker with its peers."""
_ROUNDING: Final = 1 + 1e-9

CLASS_RATIO: Final = 1.05
"""From the prices of one class to those of the next. Candidates within 5 % of the best are equal
(`policies`): narrower classes would be more to bound, and leave out hardly any worker more."""
CLASS_MS: Final = 5.0
"""Width of the classes of low idle prices; candidates within 5 ms are equal, too."""
CLASS_TOKENS: Final = 32
"""Width of a class in free tokens."""

_ClassKey = tuple[int, int, int]

RequestFloor = tuple[float, str, bool]
"""The least that a request costs on a worker, in milliseconds, the worker's uid, and whether it costs no more
than that there, but for rounding."""


class PriceClass(msgspec.Struct):
    """Workers for which requests of any length cost about the same."""

    floors: dict[str, PriceFloor]
    """By uid."""
    idle_ms: float = math.inf
    """No worker of the class has less, now or earlier; as the next."""
    per_token_ms: float = math.inf
    free_tokens: int = 0
    """No worker has more."""

    def put(self, uid: str, floor: PriceFloor) -> None:
        """A worker is of this class, with this floor."""
        self.floors[uid] = floor
        self.idle_ms = min(self.idle_ms, floor.idle_ms)
        self.per_token_ms = min(self.per_token_ms, floor.per_token_ms)
        self.free_tokens = max(self.free_tokens, floor.free_tokens)

    def bound_ms(self, uncached_tokens: int) -> float:
        """No request with so many uncached prompt tokens costs less on a worker of the class.

        The operations are those of `PriceFloor.at`, and each rises with its operands, rounded or not.
        """
        paid_tokens = uncached_tokens - self.free_tokens
        return self.idle_ms + paid_tokens * self.per_token_ms if paid_tokens > 0 else self.idle_ms

    def floors_of(self, work: Work, skipped: Collection[str]) -> list[RequestFloor]:
        """The floors of `work` on each worker that is not `skipped`, in no order."""
        uncached_tokens, needed_blocks, is_one = work.uncached_tokens, work.needed_blocks, work.sequences == 1
        # `PriceFloor.at` and `is_price_of`, written out: this is computed for hundreds of workers.
        return [
            (
                floor.idle_ms + (uncached_tokens - floor.free_tokens) * floor.per_token_ms
                if uncached_tokens > floor.free_tokens
                else floor.idle_ms,
                uid,
                is_one and needed_blocks <= floor.free_blocks,
            )
            for uid, floor in self.floors.items()
            if uid not in skipped
        ]


class PriceClasses:
    """The floors of workers that hold alike (`KeptFleet.alike`), in classes.

    classes.put("worker-0", floor)  # and again after each change
    ascending_floors([(classes, work)], known=(), skipped=())
    """

    def __init__(self) -> None:
        self._classes: dict[_ClassKey, PriceClass] = {}
        self._keys: dict[str, _ClassKey] = {}

    def __iter__(self) -> Iterator[PriceClass]:
        return iter(self._classes.values())

    def put(self, uid: str, floor: PriceFloor) -> None:
        """A worker has this floor from now on."""
        key, before = _class_key(floor), self._keys.get(uid)
        if before is not None and before != key:
            former = self._classes[before]
            del former.floors[uid]
            if not former.floors:
                del self._classes[before]
        self._keys[uid] = key
        found = self._classes.get(key)
        if found is None:
            found = self._classes[key] = PriceClass({})
        found.put(uid, floor)


def ascending_floors(
    groups: Iterable[tuple[PriceClasses, Work]], *, known: Iterable[RequestFloor], skipped: Collection[str]
) -> Iterator[RequestFloor]:
    """The floors of a request on each worker, in ascending order.

    `groups` has workers that hold alike, with the work that the request is on each of them; those `skipped`
    are left out. `known` has the floors of others.
    """
    classes = [(one, work) for group, work in groups for one in group]
    bounds = [(one.bound_ms(work.uncached_tokens), number) for number, (one, work) in enumerate(classes)]
    found = sorted(known)
    for bound_ms, number in sorted(bounds):
        # No worker of this class and of those behind it costs less than its bound.
        end = bisect.bisect_left(found, (bound_ms,))
        yield from found[:end]
        one, work = classes[number]
        found = sorted([*found[end:], *one.floors_of(work, skipped)])
    yield from found


class Shortlist(msgspec.Struct, frozen=True):
    """The workers among which a request's place is decided."""

    uids: tuple[str, ...]
    certain: int
    """So many of them, ranked, are the first of a ranking of all workers, in the same order."""
    unlisted_equals: int = 0
    """Workers that cost as little as the cheapest, and come after those that are listed."""


def shortlist(
    floors: Iterable[RequestFloor],
    price: Callable[[str], float],
    weights: Callable[[Collection[str]], Mapping[str, int]],
    *,
    count: int = LISTED_WORKERS,
) -> Shortlist:
    """The `count` cheapest of the workers in `floors`, which are read no further than necessary.

    `floors` are `ascending_floors`; `price` is a worker's cost in milliseconds. `weights` returns the weight
    of each uid that it is given; of equals the largest is first. It is called only for more than `count`.
    """
    costs: dict[str, float] = {}
    best_ms, limit_ms, least_unpriced_ms = math.inf, math.inf, math.inf
    for floor_ms, uid, is_price in floors:
        if floor_ms > limit_ms * _ROUNDING and len(costs) >= count:
            least_unpriced_ms = floor_ms / _ROUNDING
            break
        if is_price and best_ms < floor_ms * _ROUNDING and floor_ms * _ROUNDING**2 < limit_ms:
            costs[uid] = floor_ms  # what follows is no cheaper than the best: the limit stays
            continue
        cost_ms = costs[uid] = price(uid)
        if cost_ms < best_ms:
            best_ms, limit_ms = cost_ms, equality_limit_ms(cost_ms)
    equals = [uid for uid, cost_ms in costs.items() if cost_ms <= limit_ms]
    if len(equals) > count:
        first = heapq.nsmallest(count, [(-weight, uid) for uid, weight in weights(equals).items()])
        return Shortlist(tuple([uid for _, uid in first]), count, len(equals) - count)
    others = sorted([(cost_ms, uid) for uid, cost_ms in costs.items() if cost_ms > limit_ms])
    room = count - len(equals)
    # Where two cost the same their weights decide, and one of them may not be listed or not be priced.
    unlisted_ms = min([least_unpriced_ms, *(cost_ms for cost_ms, _ in others[room : room + 1])])
    certain = len(equals) + sum(cost_ms < unlisted_ms for cost_ms, _ in others[:room])
    return Shortlist((*equals, *(uid for _, uid in others[:room])), certain)


def _class_key(floor: PriceFloor) -> _ClassKey:
    return (
        int(math.log(floor.per_token_ms) / _LOG_RATIO),
        int(math.log1p(floor.idle_ms / _LINEAR_MS) / _LOG_RATIO),
        floor.free_tokens // CLASS_TOKENS,
    )


_LOG_RATIO: Final = math.log(CLASS_RATIO)
_LINEAR_MS: Final = CLASS_MS / _LOG_RATIO
"""About up to this idle price a class is `CLASS_MS` wide."""
