"""One pass over the whole block table, in slices between which the event loop runs.

A pass removes the holders that are gone, halves the counts of use if that is due, and counts what each worker
holds alone. A slot that was retired before the pass began is in no entry after its end: nothing adds it, and
each block that was there before is visited.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_router.workers.block_table import PARTS, BlockTable
from warmfleet_router.workers.block_use import UseDraws, uses
from warmfleet_router.workers.holder_sets import at_level, level, only_holder, without

SLICE_BLOCKS: Final = 512
"""0.1 ms where blocks share their holders; a few where each has others, and thousands of sets are dropped."""


class SoleBlocks(msgspec.Struct, frozen=True, gc=False):
    """What one holder has that no other has."""

    blocks: int = 0
    uses: int = 0
    """Of these blocks together, as `block_use` counts them."""


NO_SOLE_BLOCKS: Final = SoleBlocks()


class TablePass:
    """Makes one pass: call `step` until it returns False, then read `sole_blocks`."""

    def __init__(self, table: BlockTable, *, gone: int, halving: UseDraws | None = None) -> None:
        """`gone` is the mask of retired slots; with `halving` the counts of use are halved."""
        self.gone = gone
        self._table = table
        self._halving = halving
        self._sole: dict[int, SoleBlocks] = {}
        self._part = 0
        self._hashes: Sequence[BlockHash] = table.part(0)
        self._next = 0

    @property
    def sole_blocks(self) -> Mapping[int, SoleBlocks]:
        """What each slot holds alone, after the last step."""
        return self._sole

    def step(self) -> bool:
        """Visit the next blocks; whether there are more."""
        hashes = self._hashes[self._next : self._next + SLICE_BLOCKS]
        self._next += SLICE_BLOCKS
        if self.gone or self._halving is not None:
            self._table.change(hashes, self._changed)
        for entry, blocks in self._table.tally(self._part, hashes).items():
            slot = only_holder(entry)
            if slot is not None:
                before = self._sole.get(slot, NO_SOLE_BLOCKS)
                self._sole[slot] = SoleBlocks(
                    before.blocks + blocks, before.uses + blocks * uses(level(entry))
                )
        if self._next >= len(self._hashes):
            self._table.compact(self._part)
            self._part += 1
            self._hashes = self._table.part(self._part) if self._part < PARTS else ()
            self._next = 0
        return self._part < PARTS

    def _changed(self, entry: int) -> int:
        left = without(entry, self.gone)
        return left if self._halving is None else at_level(left, self._halving.halved(level(left)))
