"""One worker's blocks at a position, kept in the block table under a slot of their own."""

from collections.abc import Collection

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.resident import ResidentState
from warmfleet_router.workers.block_table import BlockTable


class HeldBlocks(ResidentState):
    """The blocks of one slot, with the position and digest up to which they are known."""

    __slots__ = ("_table", "slot")

    def __init__(self, epoch: str, seq: int, table: BlockTable, slot: int) -> None:
        """Of `slot`, which holds nothing yet."""
        super().__init__(epoch, seq)
        self._table = table
        self.slot = slot

    def holds_any(self, hashes: Collection[BlockHash]) -> bool:
        return self._table.holds_any(self.slot, hashes)

    def holds_all(self, hashes: Collection[BlockHash]) -> bool:
        return self._table.holds_all(self.slot, hashes)

    def _clear(self) -> None:
        assert not self, "no list of its blocks exists: a worker that clears its cache gets another slot"

    def _add(self, hashes: Collection[BlockHash]) -> None:
        self._table.join(self.slot, hashes)

    def _remove(self, hashes: Collection[BlockHash]) -> None:
        self._table.leave(self.slot, hashes)
