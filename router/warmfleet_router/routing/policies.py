"""The routing policies: pure functions, so that all routers rank alike what they see alike.

`lowest_cost` ranks priced candidates. The others, a table, order the workers of a fleet by load or name, and
only the first of them have to be priced. Scores are costs, lower is better, in the policy's own unit.
"""

import hashlib
import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from warmfleet_router.routing.cost import CostTerms, StepRates, WorkerLoad

EQUAL_MS: Final = 5.0
EQUAL_RATIO: Final = 0.05
"""Candidates within max(5 ms, 5 %) of the best cost are equal: the estimate is no better than that."""

BOUNDED_LOAD_RATIO: Final = 1.25
"""ConsistentHash skips a worker that would hold more than this multiple of the fleet's mean load
(Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded Loads, 2016)."""


class Candidate(msgspec.Struct, frozen=True):
    """One ready worker as this request sees it."""

    uid: str
    endpoint: str
    """The endpoint's name, fit to be shown."""
    precise: bool
    """Whether the cached tokens come from a complete index; otherwise they are 0."""
    cached_tokens: int
    """min(longest run of resident or pending blocks, cacheable tokens), over all prompts."""
    pending_tokens: int
    """The part of `cached_tokens` that a request on its way there is still computing."""
    uncached_tokens: int
    load: WorkerLoad
    rates: StepRates
    cost: CostTerms


class RoutedRequest(msgspec.Struct, frozen=True):
    """What a policy reads of the request."""

    head_key: bytes
    """Stands for the prompt's head: requests that share a system prompt share it."""
    tie_key: bytes
    """The first block that no candidate holds; decides among equals, alike in every router."""
    dispatch_count: int
    """Dispatches of this router so far."""
    unlisted_equals: int = 0
    """Workers that cost as little as the best candidate and are no candidates: those come before them."""


class Order(msgspec.Struct, frozen=True):
    """The first workers in the order of a policy that prices none."""

    uids: tuple[str, ...]
    scores: tuple[float, ...]
    """Of `uids`, in the policy's own unit: sequences, or places."""
    reason: str
    """Why the first is first."""


class Ranking(msgspec.Struct, frozen=True):
    """Candidates from best to worst, and why the first is first."""

    candidates: tuple[Candidate, ...]
    scores: tuple[float, ...]
    """Of `candidates`, in the policy's own unit: milliseconds, sequences, or places."""
    reason: str
    unlisted: int = 0
    """Workers that were compared, too, and are behind the first of these."""

    def led_by(self, candidate: Candidate, reason: str) -> "Ranking":
        """The same with `candidate` moved to the front, for `reason`."""
        place = next(place for place, other in enumerate(self.candidates) if other is candidate)
        candidates, scores = list(self.candidates), list(self.scores)
        candidates.insert(0, candidates.pop(place))
        scores.insert(0, scores.pop(place))
        return Ranking(tuple(candidates), tuple(scores), reason, self.unlisted)


def equality_limit_ms(best_ms: float) -> float:
    """Up to which cost a candidate is as good as the best one."""
    return best_ms + max(EQUAL_MS, best_ms * EQUAL_RATIO)


def lowest_cost(candidates: Sequence[Candidate], request: RoutedRequest) -> Ranking:
    """Least time to first token plus delay to others, now and later; among equals, rendezvous hashing."""
    weights = rendezvous_weights(request.tie_key, [candidate.uid for candidate in candidates])
    limit_ms = equality_limit_ms(min(candidate.cost.total_ms for candidate in candidates))

    def rank(candidate: Candidate) -> tuple[bool, float, int, str]:
        total_ms, uid = candidate.cost.total_ms, candidate.uid
        is_equal = total_ms <= limit_ms
        # The uid decides last, so that the order in which workers were discovered never does.
        return not is_equal, 0.0 if is_equal else total_ms, -weights[uid], uid

    equals = sum(candidate.cost.total_ms <= limit_ms for candidate in candidates) + request.unlisted_equals
    ordered = sorted(candidates, key=rank)
    return Ranking(
        candidates=tuple(ordered),
        scores=tuple([candidate.cost.total_ms for candidate in ordered]),
        reason="lowest cost" if equals == 1 else f"first of {equals} equals by rendezvous hash",
    )


LoadPolicy = Callable[[Mapping[str, WorkerLoad], RoutedRequest, int], Order]
"""From the load of every worker, by uid, to the first so many of them."""


def least_loaded(loads: Mapping[str, WorkerLoad], request: RoutedRequest, count: int) -> Order:
    """Fewest running and waiting sequences, then fewest queued tokens."""
    weights = rendezvous_weights(request.tie_key, loads)

    def rank(uid: str) -> tuple[int, int, int, str]:
        load = loads[uid]
        return load.sequences, load.queued_uncached_tokens, -weights[uid], uid

    return _by_sequences(heapq.nsmallest(count, loads, key=rank), loads, "fewest sequences")


def round_robin(loads: Mapping[str, WorkerLoad], request: RoutedRequest, count: int) -> Order:
    """One after the other, in the order of their uids."""
    in_order = sorted(loads)
    start = request.dispatch_count % len(in_order)
    uids = (in_order[start:] + in_order[:start])[:count]
    return Order(tuple(uids), tuple(map(float, range(len(uids)))), "next in round robin")


def consistent_hash(loads: Mapping[str, WorkerLoad], request: RoutedRequest, count: int) -> Order:
    """Rendezvous hash of the prompt's head, skipping workers above 1.25 times the mean load."""
    weights = rendezvous_weights(request.head_key, loads)
    total = sum([load.sequences for load in loads.values()])
    limit = math.ceil(BOUNDED_LOAD_RATIO * (total + 1) / len(loads))
    first = heapq.nsmallest(
        count, loads, key=lambda uid: (loads[uid].sequences + 1 > limit, -weights[uid], uid)
    )
    is_owner = weights[first[0]] == max(weights.values())
    reason = "owner of the prompt's head" if is_owner else f"next after the head's owner, which has {limit}+"
    return _by_sequences(first, loads, reason)


LOAD_POLICIES: Final[Mapping[str, LoadPolicy]] = {
    "LeastLoaded": least_loaded,
    "RoundRobin": round_robin,
    "ConsistentHash": consistent_hash,
}

PRICED: Final = frozenset({"LowestCost"})
"""Policies that send a slow worker less because it costs more; under the others it has to be ejected."""

POLICIES: Final = ("LowestCost", *LOAD_POLICIES)


def agreed_policy(named: Iterable[str], default: str) -> str:
    """Name of the policy that a model's deployment names; `default` where it names none, or an unknown one.

    `named` is `Endpoint.policy` of the model's endpoints. They are of one deployment, and differ only while
    an operator gives the same name to several.
    """
    agreed = set(named)
    name = agreed.pop() if len(agreed) == 1 else ""
    return name if name in POLICIES else default


def rendezvous_weights(key: bytes, uids: Iterable[str]) -> dict[str, int]:
    """A weight of each uid under `key`, the same in every process.

    Highest random weight (Thaler and Ravishankar, 1996).
    """
    keyed, weights = hashlib.blake2b(key=key[:64], digest_size=8), dict[str, int]()
    for uid in uids:
        of_uid = keyed.copy()
        of_uid.update(uid.encode())
        weights[uid] = int.from_bytes(of_uid.digest(), "little")
    return weights


def _by_sequences(uids: Sequence[str], loads: Mapping[str, WorkerLoad], reason: str) -> Order:
    return Order(tuple(uids), tuple([float(loads[uid].sequences) for uid in uids]), reason)
