"""Pending blocks: blocks that dispatched requests are about to compute on a worker.

Without them, sixteen requests with the same new prefix that arrive together would see sixteen cold workers.
A dispatch makes its blocks pending at its worker. A pending block counts like a resident one: the remaining
prefill of the request that computes it is in the worker's queued tokens, so those that follow it are charged
the wait. A block stops being pending when the worker reports it stored, when the dispatch fails, or two
seconds after the first byte of its answer: what is not stored by then will not be.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from warmfleet_contracts.cache.blocks import BlockHash

SETTLE_SECONDS: Final = 2.0
"""How long after the first byte a Stored event may still be on its way."""

DEFAULT_MAX_BLOCKS: Final = 1_000_000
"""Pending blocks over all workers, about 100 bytes each; more are not predicted."""


class ResidentBlocks(Protocol):
    """What a match needs of the prefix index."""

    def holds(self, uid: str, block_hash: BlockHash) -> bool: ...


class PrefixMatch(msgspec.Struct, frozen=True, gc=False):
    """How many blocks of a prompt a worker holds or computes, without a break from block 0."""

    blocks: int
    pending_blocks: int
    """The part of `blocks` that is not resident yet."""


@dataclass(slots=True)
class _Entry:
    uid: str
    hashes: Sequence[BlockHash]
    first_hashes: Sequence[BlockHash]
    ends_at: float | None = None


class _Claim(msgspec.Struct, gc=False):
    """The entries that compute one block which the worker has not stored since."""

    since: int
    """Ticket of the first of them; older entries lost the block when it was stored."""
    entries: int = 1


_NONE: Final[Mapping[BlockHash, _Claim]] = {}


class PendingBlocks:
    """Per worker, the blocks that live dispatches compute. Bounded; not shared between threads.

    `insert`, `settle` and `drop` follow a dispatch, `stored` a worker's events. Entries whose time is over
    are removed by `insert` and `stored`; the queries ignore them before that, and change nothing.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, *, max_blocks: int = DEFAULT_MAX_BLOCKS
    ) -> None:
        self._now = now
        self._max_blocks = max_blocks
        self._blocks = 0
        self._claims: dict[str, dict[BlockHash, _Claim]] = {}
        """By worker and block."""
        self._beginning: dict[BlockHash, Counter[str]] = {}
        """Entries by the first block of a prompt that they compute, and by worker."""
        self._entries: dict[int, _Entry] = {}
        self._settling: dict[int, _Entry] = {}
        """Entries with an end, in the order of their ends."""
        self._last = 0

    # Events.

    def insert(self, uid: str, hashes: Sequence[BlockHash], first_hashes: Sequence[BlockHash] = ()) -> int:
        """Make `hashes` pending at a worker; returns the entry's ticket. Above the bound nothing is kept.

        `first_hashes` are those of them with which a prompt begins.
        """
        self._expire()
        self._last += 1
        if self._blocks + len(hashes) <= self._max_blocks:
            self._entries[self._last] = _Entry(uid, hashes, first_hashes)
            for block_hash in first_hashes:
                self._beginning.setdefault(block_hash, Counter())[uid] += 1
            self._blocks += len(hashes)
            claims = self._claims.setdefault(uid, {})
            for block_hash in hashes:
                claim = claims.get(block_hash)
                if claim is None:
                    claims[block_hash] = _Claim(self._last)
                else:
                    claim.entries += 1
        return self._last

    def settle(self, ticket: int) -> None:
        """The first byte came: the entry ends in `SETTLE_SECONDS`."""
        entry = self._entries.get(ticket)
        if entry is not None and entry.ends_at is None:
            entry.ends_at = self._now() + SETTLE_SECONDS
            self._settling[ticket] = entry

    def drop(self, ticket: int) -> None:
        """The dispatch failed before its first byte: it will store nothing."""
        entry = self._entries.pop(ticket, None)
        if entry is None:
            return
        self._settling.pop(ticket, None)
        self._blocks -= len(entry.hashes)
        for block_hash in entry.first_hashes:
            beginning = self._beginning[block_hash]
            beginning[entry.uid] -= 1
            if not beginning[entry.uid]:
                del beginning[entry.uid]
            if not beginning:
                del self._beginning[block_hash]
        claims = self._claims.get(entry.uid, {})
        for block_hash in entry.hashes:
            claim = claims.get(block_hash)
            if claim is None or ticket < claim.since:
                continue
            claim.entries -= 1
            if not claim.entries:
                del claims[block_hash]
        if not claims:
            self._claims.pop(entry.uid, None)

    def stored(self, uid: str, hashes: Iterable[BlockHash]) -> None:
        """The worker stored `hashes`: from now on the index alone decides, so that an eviction counts."""
        self._expire()
        claims = self._claims.get(uid)
        if claims:
            for block_hash in hashes:
                claims.pop(block_hash, None)

    def forget(self, uid: str) -> None:
        """The worker is gone, and what it was computing."""
        for ticket in [ticket for ticket, entry in self._entries.items() if entry.uid == uid]:
            self.drop(ticket)

    # Queries.

    def match(
        self, uid: str, hashes: Sequence[BlockHash], resident_blocks: int, index: ResidentBlocks
    ) -> PrefixMatch:
        """The longest prefix of `hashes` that is resident or pending at a worker.

        `resident_blocks` is how far the index alone matches.
        """
        claims = self._live_claims(uid)
        if not claims:
            return PrefixMatch(resident_blocks, 0)
        position, pending = resident_blocks, 0
        while position < len(hashes):
            block_hash = hashes[position]
            if not index.holds(uid, block_hash):
                if block_hash not in claims:
                    break
                pending += 1
            position += 1
        return PrefixMatch(position, pending)

    def claims(self, uid: str, block_hash: BlockHash) -> int:
        """Live entries that compute a block which the worker has not stored."""
        claim = self._live_claims(uid).get(block_hash)
        return claim.entries if claim is not None else 0

    def workers_beginning(self, block_hash: BlockHash) -> Collection[str]:
        """The workers with an entry of a prompt that begins with a block, which may have stored it since."""
        return self._beginning.get(block_hash, ())

    def has_entry(self, uid: str, block_hash: BlockHash) -> bool:
        """Whether an entry of a worker computes a block, whether or not its time is over."""
        return block_hash in self._claims.get(uid, _NONE)

    @property
    def blocks(self) -> int:
        """Blocks of all live entries, a block counted once per entry."""
        return self._blocks - sum(len(entry.hashes) for _, entry in self._overdue())

    # Inside.

    def _expire(self) -> None:
        for ticket, _ in list(self._overdue()):
            self.drop(ticket)

    def _overdue(self) -> Iterator[tuple[int, _Entry]]:
        """Entries whose time is over: few, because the next event removes them."""
        now = self._now()
        for ticket, entry in self._settling.items():
            if entry.ends_at is None or entry.ends_at > now:
                return
            yield ticket, entry

    def _live_claims(self, uid: str) -> Mapping[BlockHash, _Claim]:
        """A worker's claims without those of overdue entries."""
        claims = self._claims.get(uid, _NONE)
        overdue = Counter(
            block_hash
            for ticket, entry in self._overdue()
            if entry.uid == uid
            for block_hash in entry.hashes
            if block_hash in claims and claims[block_hash].since <= ticket
        )
        if not overdue:
            return claims
        return {
            block_hash: _Claim(claim.since, left)
            for block_hash, claim in claims.items()
            if (left := claim.entries - overdue[block_hash]) > 0
        }
