"""What the blocks mean: chained hashes, the longest cached prefix, and who is computing what right now."""

from collections.abc import Sequence
from dataclasses import dataclass

from warmfleet_contracts.cache.blocks import (
    BlockHash,
    CacheIdentity,
    block_hashes,
    block_root,
    cacheable_tokens,
)
from warmfleet_worker.kv_cache.block_pool import Block, BlockPool


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The blocks that already hold a prefix. They are not pinned yet: pin them before allocating."""

    blocks: tuple[Block, ...] = ()
    cached_tokens: int = 0

    @property
    def evictable_blocks(self) -> int:
        """Blocks of the hit that nobody holds: pinning them takes as many from the available ones."""
        return sum(not block.references for block in self.blocks)


NO_HIT = PrefixHit()


class PrefixCache:
    """Names blocks by content and finds them again."""

    def __init__(self, pool: BlockPool, identity: CacheIdentity, block_size_tokens: int) -> None:
        self.block_size_tokens = block_size_tokens
        self._pool = pool
        self._identity = identity
        self._leaders: dict[BlockHash, int] = {}

    def root(self, salt: bytes) -> BlockHash:
        """Parent of a sequence's first block; different salts share nothing."""
        return block_root(self._identity, salt=salt)

    def extend_hashes(self, hashes: list[BlockHash], root: BlockHash, token_ids: Sequence[int]) -> None:
        """Append the hashes of the full blocks of `token_ids` that `hashes` does not cover yet."""
        first_token = len(hashes) * self.block_size_tokens
        parent = hashes[-1] if hashes else root
        hashes += block_hashes(parent, token_ids[first_token:], self.block_size_tokens)

    def match(self, hashes: Sequence[BlockHash], sequence_tokens: int) -> PrefixHit:
        """Longest run of resident full blocks from block 0, never the last token of the sequence."""
        limit_blocks = cacheable_tokens(sequence_tokens, self.block_size_tokens) // self.block_size_tokens
        blocks: list[Block] = []
        for block_hash in hashes[:limit_blocks]:
            block = self._pool.find(block_hash)
            if block is None:
                break
            blocks.append(block)
        if not blocks:
            return NO_HIT
        return PrefixHit(tuple(blocks), len(blocks) * self.block_size_tokens)

    # A leader is the sequence that computes a block now; a follower wants the same block.

    def lead(self, sequence_id: int, hashes: Sequence[BlockHash]) -> None:
        """`sequence_id` computes these blocks from now on; who came first stays the leader."""
        for block_hash in hashes:
            self._leaders.setdefault(block_hash, sequence_id)

    def leader_of(self, block_hash: BlockHash) -> int | None:
        return self._leaders.get(block_hash)

    def stop_leading(self, sequence_id: int, hashes: Sequence[BlockHash]) -> None:
        """The blocks are committed, or will not be: followers match again, or take over."""
        for block_hash in hashes:
            if self._leaders.get(block_hash) == sequence_id:
                del self._leaders[block_hash]

    @property
    def led_blocks(self) -> int:
        return len(self._leaders)
