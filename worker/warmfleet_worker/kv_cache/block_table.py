"""The blocks of one sequence's KV, from position 0 on (PagedAttention, Kwon et al. 2023)."""

from array import array
from collections.abc import Iterable, Sequence

from warmfleet_worker.kv_cache.block_pool import Block


class BlockTable:
    """A sequence's blocks in order; entry i holds positions i x block size to (i + 1) x block size - 1.

    The first `committed_blocks` are shared and read-only; the sequence alone writes the rest.
    """

    __slots__ = ("_blocks", "_ids", "committed_blocks")

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._ids = array("i")
        self.committed_blocks = 0

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def blocks(self) -> Sequence[Block]:
        return self._blocks

    def ids(self, count: int) -> "array[int]":
        """Ids of the first `count` blocks as they are now, a copy of one piece of memory."""
        return self._ids[:count]

    def adopt(self, hit: Iterable[Block]) -> None:
        """Start with blocks that are committed already. Only an empty table can."""
        assert not self._blocks
        self.extend(hit)
        self.committed_blocks = len(self._blocks)

    def extend(self, blocks: Iterable[Block]) -> None:
        added = list(blocks)
        self._blocks += added
        self._ids.extend(block.block_id for block in added)

    @property
    def next_uncommitted(self) -> Block:
        return self._blocks[self.committed_blocks]

    def commit_next(self, block: Block) -> None:
        """The first writable block is read-only from now on; `block` is the one that stays."""
        self._blocks[self.committed_blocks] = block
        self._ids[self.committed_blocks] = block.block_id
        self.committed_blocks += 1

    def take_all(self) -> Sequence[Block]:
        """Empty the table and return what it held, in order, for `BlockPool.release`."""
        blocks = self._blocks
        self._blocks, self._ids, self.committed_blocks = [], array("i"), 0
        return blocks


def blocks_for(tokens: int, block_size_tokens: int) -> int:
    """Blocks that `tokens` positions occupy."""
    return -(-tokens // block_size_tokens)
