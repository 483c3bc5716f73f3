"""One map from block hash to the workers that hold the block, for all workers together.

About 100 bytes per block: 64 of its hash, 27 to 60 of a hash table, and an entry (`holder_sets`) that blocks
with the same holders share. Keys and values are bytes and integers, so that Python's garbage
collector does not visit these tables.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_router.workers.holder_sets import holds, is_worth_sharing, joined, without

PARTS: Final = 256
"""Hash tables, by a hash's last byte: Python grows a table at once, in which nothing else runs."""
COMPACT_BYTES: Final = 60
"""Of a hash table, per block. After removals Python may make one of twice as many; then it is copied."""
_REMOVED_PER_CHECK: Final = 32
_CHECKS_AT_ONCE: Final = 8
_MIN_SHARED: Final = 16_384
_BLOCKS_PER_SHARED: Final = 8


class BlockTable:
    """Blocks and their holders, which are named by slots. No order, no bound."""

    def __init__(self) -> None:
        self._parts: list[dict[BlockHash, int]] = [{} for _ in range(PARTS)]
        self._shared: dict[int, int] = {}
        """Entries in use, so that equal ones are one object. Bounded: it is emptied, and begins anew."""
        self._next_check = 0

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def entry(self, block_hash: BlockHash) -> int:
        """Holders of a block; 0 for a block that is not kept."""
        return self._parts[block_hash[-1]].get(block_hash, 0)

    def entries(self, hashes: Iterable[BlockHash]) -> Iterable[int]:
        """The entries of `hashes`, in order, each looked up when it is asked for; 60 ns each."""
        parts = self._parts
        return (parts[block_hash[-1]].get(block_hash, 0) for block_hash in hashes)

    def part(self, number: int) -> Sequence[BlockHash]:
        """The blocks whose hash ends with the byte `number`, as they are now."""
        return tuple(self._parts[number])

    def tally(self, number: int, hashes: Iterable[BlockHash]) -> Mapping[int, int]:
        """How often each entry occurs among `hashes`, which are of one part; 0 for those not kept."""
        return Counter(map(self._parts[number].get, hashes, repeat(0)))

    def holds_any(self, slot: int, hashes: Iterable[BlockHash]) -> bool:
        """Whether `slot` holds one of `hashes`."""
        return any(holds(entry, slot) for entry in self._distinct(hashes))

    def holds_all(self, slot: int, hashes: Iterable[BlockHash]) -> bool:
        """Whether `slot` holds each of `hashes`."""
        return all(holds(entry, slot) for entry in self._distinct(hashes))

    def join(self, slot: int, hashes: Iterable[BlockHash]) -> None:
        """`slot` stored `hashes`, none of which it holds."""
        self.change(hashes, lambda entry: joined(entry, slot))

    def leave(self, slot: int, hashes: Collection[BlockHash]) -> None:
        """`slot` removed `hashes`, all of which it holds."""
        gone = 1 << slot
        self.change(hashes, lambda entry: without(entry, gone))
        for _ in range(min(-(-len(hashes) // _REMOVED_PER_CHECK), _CHECKS_AT_ONCE)):
            self._next_check = (self._next_check + 1) % PARTS
            self.compact(self._next_check)

    def change(self, hashes: Iterable[BlockHash], changed: Callable[[int], int]) -> None:
        """Replace the entry of each block by `changed(entry)`, asked once per distinct entry; 0 drops it."""
        parts = self._parts
        known: dict[int, int] = {}
        for block_hash in hashes:
            part = parts[block_hash[-1]]
            entry = part.get(block_hash, 0)
            new = known.get(entry)
            if new is None:
                new = known[entry] = self._share(changed(entry))
            if new:
                part[block_hash] = new
            else:
                part.pop(block_hash, None)

    def compact(self, number: int) -> None:
        """Copy a part into a smaller hash table if its own is larger than it needs to be."""
        part = self._parts[number]
        if sys.getsizeof(part) > COMPACT_BYTES * len(part):
            self._parts[number] = dict(part)

    def _distinct(self, hashes: Iterable[BlockHash]) -> set[int]:
        parts = self._parts
        return {parts[block_hash[-1]].get(block_hash, 0) for block_hash in hashes}

    def _share(self, entry: int) -> int:
        # An object of its own costs a block with three holders and more at most 16 bytes per further one.
        if not is_worth_sharing(entry):
            return entry
        shared = len(self._shared)
        if shared >= _MIN_SHARED and shared > len(self) // _BLOCKS_PER_SHARED:
            self._shared.clear()
        return self._shared.setdefault(entry, entry)
