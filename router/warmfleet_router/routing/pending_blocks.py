"""Blocks that are on their way: prefixes that a dispatched request is about to compute on a worker.

Without them, sixteen siblings of a new prefix that arrive together would see sixteen cold workers. A
dispatch makes its blocks pending for its worker. A pending block counts like a resident one; the leader's
remaining prefill is in the worker's queued tokens, so whoever follows pays for the wait. An entry ends when
the index confirms the block, when its lease fails, or two seconds after its first byte: what is not Stored
by then will not be.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from warmfleet_contracts.cache.blocks import BlockHash

SETTLE_SECONDS: Final = 2.0
"""How long after the first byte a Stored may still be under way."""

DEFAULT_MAX_BLOCKS: Final = 1_000_000
"""Pending blocks over all workers, about 100 bytes each; what exceeds it is simply not predicted."""


class Residents(Protocol):
    """The part of the prefix index that pending blocks are held against."""

    def holds(self, uid: str, block_hash: BlockHash) -> bool: ...


class Run(msgspec.Struct, frozen=True, gc=False):
    """How far a prompt is covered on a worker, in blocks from position 0."""

    blocks: int
    pending_blocks: int
    """The part of `blocks` that is not resident yet."""


@dataclass(slots=True)
class _Entry:
    uid: str
    hashes: Sequence[BlockHash]
    ends_at: float | None = None


class PendingBlocks:
    """Per worker, the blocks that live dispatches are computing. Bounded; not shared between threads."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, *, max_blocks: int = DEFAULT_MAX_BLOCKS
    ) -> None:
        self._now = now
        self._max_blocks = max_blocks
        self._blocks = 0
        self._counts: dict[str, dict[BlockHash, int]] = {}
        self._entries: dict[int, _Entry] = {}
        self._settling: dict[int, _Entry] = {}
        """Entries with an end, in the order in which they end."""
        self._last = 0

    def insert(self, uid: str, hashes: Sequence[BlockHash]) -> int:
        """Make `hashes` pending for a worker; returns the entry's ticket. Over the bound nothing is kept."""
        self._last += 1
        if self._blocks + len(hashes) <= self._max_blocks:
            self._entries[self._last] = _Entry(uid, hashes)
            self._blocks += len(hashes)
            counts = self._counts.setdefault(uid, {})
            for block_hash in hashes:
                counts[block_hash] = counts.get(block_hash, 0) + 1
        return self._last

    def settle(self, ticket: int) -> None:
        """The first byte came: what is not confirmed within `SETTLE_SECONDS` is dropped."""
        entry = self._entries.get(ticket)
        if entry is not None and entry.ends_at is None:
            entry.ends_at = self._now() + SETTLE_SECONDS
            self._settling[ticket] = entry

    def drop(self, ticket: int) -> None:
        """The lease failed before its first byte: nothing will be stored on its behalf."""
        entry = self._entries.pop(ticket, None)
        if entry is None:
            return
        self._settling.pop(ticket, None)
        self._blocks -= len(entry.hashes)
        counts = self._counts.get(entry.uid, {})
        for block_hash in entry.hashes:
            left = counts.get(block_hash, 0) - 1
            if left > 0:
                counts[block_hash] = left
            else:
                counts.pop(block_hash, None)
        if not counts:
            self._counts.pop(entry.uid, None)

    def run(
        self, uid: str, hashes: Sequence[BlockHash], resident_run_blocks: int, residents: Residents
    ) -> Run:
        """The longest run from block 0 that is resident or pending.

        `resident_run_blocks` is the run that the index alone gives. A pending block that the index holds is
        confirmed: from then on the index alone speaks for it, so that its eviction is believed.
        """
        self.expire()
        counts = self._counts.get(uid)
        if not counts:
            return Run(resident_run_blocks, 0)
        for block_hash in list(filter(counts.__contains__, hashes[:resident_run_blocks])):
            counts.pop(block_hash, None)
        position, pending = resident_run_blocks, 0
        while position < len(hashes):
            block_hash = hashes[position]
            if residents.holds(uid, block_hash):
                counts.pop(block_hash, None)
            elif block_hash in counts:
                pending += 1
            else:
                break
            position += 1
        return Run(position, pending)

    def claims(self, uid: str, block_hash: BlockHash) -> int:
        """Live entries that claim to compute a block which the index has not confirmed."""
        return self._counts.get(uid, {}).get(block_hash, 0)

    def forget(self, uid: str) -> None:
        """The worker is gone, or began a new epoch: nothing is on its way there."""
        for ticket in [ticket for ticket, entry in self._entries.items() if entry.uid == uid]:
            self.drop(ticket)

    def expire(self) -> None:
        """Drop what has had its time. Called by every question; harmless at any time."""
        now = self._now()
        while self._settling:
            ticket, entry = next(iter(self._settling.items()))
            if entry.ends_at is None or entry.ends_at > now:
                return
            self.drop(ticket)

    @property
    def blocks(self) -> int:
        """Blocks of all live entries, a block counted once per entry."""
        self.expire()  # nobody else asks while no request comes
        return self._blocks
