"""Numbers by which the block table names its holders; each is one set of blocks of one worker.

A set that is dropped leaves its number in entries of the table. Until a pass over the whole table has removed
it there (`table_pass`), the slot is retired: taken again before that, it would give those blocks to another
worker. The lowest free slot is taken first, which keeps masks short.
"""

import heapq
from collections import Counter
from typing import Final

import msgspec

from warmfleet_router.workers.holder_sets import MAX_SLOTS, slots_of

MAX_RETIRED_PER_WORKER: Final = 4
"""A worker that drops its sets faster than the table is swept gets no other slot for now: it would take the
slots of all."""


class _Retired(msgspec.Struct, frozen=True, gc=False):
    uid: str
    blocks: int


class Slots:
    """The slots in use, those retired, and those free."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0
        """Slots from here on were never taken."""
        self._retired: dict[int, _Retired] = {}

    def take(self, uid: str) -> int | None:
        """A free slot for a set of `uid`; None if there is none for this worker."""
        retired_of = Counter(retired.uid for retired in self._retired.values())
        if retired_of[uid] >= MAX_RETIRED_PER_WORKER:
            return None
        if self._free:
            return heapq.heappop(self._free)
        if self._next == MAX_SLOTS:
            return None
        self._next += 1
        return self._next - 1

    def retire(self, slot: int, uid: str, blocks: int) -> None:
        """A set of `uid` is dropped that held so many blocks. Without any its slot is free at once."""
        if blocks:
            self._retired[slot] = _Retired(uid, blocks)
        else:
            heapq.heappush(self._free, slot)

    def free(self, swept: int) -> None:
        """No entry of the table names the retired slots of the mask `swept` any more."""
        for slot in slots_of(swept):
            del self._retired[slot]
            heapq.heappush(self._free, slot)

    @property
    def retired(self) -> int:
        """Mask of the retired slots."""
        return sum(1 << slot for slot in self._retired)

    @property
    def retired_blocks(self) -> int:
        """Blocks of the sets that are dropped and not swept yet, a block of two sets counted twice."""
        return sum(retired.blocks for retired in self._retired.values())
