"""Which prefixes of workers that go are computed by which that stay. Pure.

A prefix is moved if a victim holds it and no other worker does, and if it is expected to come at least once
within the payback time: then computing it now, with what requests leave of a worker, is no more work than
computing it when it comes, and the prompt does not wait for it. Those that come most often go first, as in
`hot_prefixes`. It goes to the worker that holds most of its beginning, because there is least to compute;
among equals by rendezvous hashing of the first block that none of them holds (Thaler and Ravishankar, 1996):
prefixes with one beginning meet, the others spread, and all routers, which see the same blocks, choose alike.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_router.prewarm.hot_prefixes import HotPrefix
from warmfleet_router.routing.policies import rendezvous_weights


class Skipped(StrEnum):
    """Why a prefix of a victim is not moved."""

    HELD = "held"
    """A worker that stays has it."""
    RARE = "rare"
    """It is not expected within the payback time."""
    NO_KEY = "no_key"
    """Its tenant has no key any more."""
    NO_ROOM = "no_room"
    """No worker that stays has as many blocks that no sequence holds, or takes more at once."""
    REFUSED = "refused"
    """The worker would have had to evict what was used since, or does not compute it at all."""
    LATE = "late"
    """It was not computed in time."""
    FAILED = "failed"
    """The worker gave no answer."""


class Terms(NamedTuple):
    """What the operator asks for."""

    victims: frozenset[str]
    payback_seconds: float
    share: int
    shares: int


class Move(NamedTuple):
    """A prefix that one worker is to compute."""

    prefix: HotPrefix
    uid: str
    tokens: int
    """That are not cached there."""


class HandoverPlan:
    """Decides prefix by prefix, the one that comes most often first.

    plan = HandoverPlan(terms, room_tokens={uid: 100_000}, matches=index.matches, block_size_tokens=16)
    for prefix in hot:
        plan.consider(prefix, lambda: hashes_of(prefix), now)
    plan.moves
    """

    def __init__(
        self,
        terms: Terms,
        *,
        room_tokens: Mapping[str, int],
        matches: Callable[[Sequence[BlockHash]], Mapping[str, int]],
        block_size_tokens: int,
    ) -> None:
        """`room_tokens`: of each worker that may compute some; `matches`: the blocks that each holds."""
        self._terms = terms
        self._room_tokens = dict(room_tokens)
        self._matches = matches
        self._block_size_tokens = block_size_tokens
        self._planned: dict[BlockHash, str] = {}
        """Where the blocks of `moves` will be."""
        self.moves: list[Move] = []
        self.skipped: Counter[Skipped] = Counter()

    def consider(
        self, prefix: HotPrefix, block_hashes: Callable[[], Sequence[BlockHash]], now: float
    ) -> None:
        """Decide about one prefix; `block_hashes` is called for one that is worth moving."""
        held = self._matches((prefix.block_hash,))
        if self._terms.victims.isdisjoint(held):
            return
        if not self._terms.victims.issuperset(held):
            self.skipped[Skipped.HELD] += 1
        elif prefix.uses_per_second(now) * self._terms.shares * self._terms.payback_seconds < 1:
            self.skipped[Skipped.RARE] += 1
        else:
            self._place(prefix, block_hashes())

    def _place(self, prefix: HotPrefix, hashes: Sequence[BlockHash]) -> None:
        matched = self._matches(hashes)
        held = {uid: matched.get(uid, 0) for uid in self._room_tokens}
        first = max(held.values(), default=0)
        for position in range(len(hashes), first, -1):
            uid = self._planned.get(hashes[position - 1])
            if uid is not None:
                held[uid] = position
                break
        weights = rendezvous_weights(hashes[min(first, len(hashes) - 1)], held)
        for uid in sorted(held, key=lambda uid: (-held[uid], -weights[uid])):
            tokens = len(prefix.token_ids) - held[uid] * self._block_size_tokens
            if tokens <= self._room_tokens[uid]:
                self._room_tokens[uid] -= tokens
                self._planned.update(dict.fromkeys(hashes[held[uid] :], uid))
                self.moves.append(Move(prefix, uid, tokens))
                return
        self.skipped[Skipped.NO_ROOM] += 1


def share_of(block_hash: BlockHash, shares: int) -> int:
    """The number of the router that moves a prefix, out of `shares`."""
    weights = rendezvous_weights(block_hash, [str(share) for share in range(shares)])
    return int(max(weights, key=weights.__getitem__))


def of_share(hot: Collection[HotPrefix], terms: Terms, *, own: bool) -> list[HotPrefix]:
    """The prefixes that this router moves, or those that are the others'."""
    return [one for one in hot if (share_of(one.block_hash, terms.shares) == terms.share) is own]
