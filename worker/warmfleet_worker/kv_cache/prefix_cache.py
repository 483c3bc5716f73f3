"""Chained block hashes, the longest cached prefix of a sequence, and which sequence computes a block now."""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from warmfleet_contracts.cache.blocks import (
    BlockHash,
    CacheIdentity,
    block_hashes,
    block_root,
    cacheable_tokens,
)
from warmfleet_worker.kv_cache.block_pool import Block, BlockPool


class PrefixHit(msgspec.Struct, frozen=True, gc=False):
    """The blocks that already hold a prefix. They are not pinned yet: pin them before allocating."""

    blocks: tuple[Block, ...] = ()
    cached_tokens: int = 0

    @property
    def evictable_blocks(self) -> int:
        """Blocks of the hit without a holder: pinning them takes as many from the available ones.

        In O(log blocks): who holds a block holds those before it.
        """
        held = bisect_left(self.blocks, True, key=lambda block: not block.references)
        return len(self.blocks) - held


NO_HIT = PrefixHit()


class PrefixCache:
    """Finds blocks by the hash of their content and of all content before them.

    Use it with the pool of the same engine; one identity (model, tokenizer, dtype) per cache.

        root = cache.root(salt)
        cache.extend_hashes(hashes, root, token_ids)
        hit = cache.match(hashes, len(token_ids))  # not pinned: see `BlockPool.pin`
    """

    def __init__(self, pool: BlockPool, identity: CacheIdentity, block_size_tokens: int) -> None:
        self.block_size_tokens = block_size_tokens
        self._pool = pool
        self._identity = identity
        self._leaders: dict[BlockHash, int] = {}

    def root(self, salt: bytes) -> BlockHash:
        """Parent hash of a sequence's first block; sequences with different salts share no blocks."""
        return block_root(self._identity, salt=salt)

    def extend_hashes(self, hashes: list[BlockHash], root: BlockHash, token_ids: Sequence[int]) -> None:
        """Append the hashes of the full blocks of `token_ids` that `hashes` does not cover yet."""
        first_token = len(hashes) * self.block_size_tokens
        parent = hashes[-1] if hashes else root
        hashes += block_hashes(parent, token_ids[first_token:], self.block_size_tokens)

    def match(self, hashes: Sequence[BlockHash], sequence_tokens: int) -> PrefixHit:
        """Longest run of resident full blocks from block 0, without the last token. Changes nothing."""
        limit_blocks = cacheable_tokens(sequence_tokens, self.block_size_tokens) // self.block_size_tokens
        blocks = self._pool.find_run(hashes[:limit_blocks])
        if not blocks:
            return NO_HIT
        return PrefixHit(blocks, len(blocks) * self.block_size_tokens)

    def matched_blocks(self, hashes: Sequence[BlockHash], sequence_tokens: int, previous_blocks: int) -> int:
        """How many blocks `match` would return, given its number at an earlier time. Changes nothing.

        Costs O(blocks that became resident since), not O(blocks): a holder of a block holds those before it,
        and blocks are released and evicted tail first, so residency has no gaps.
        """
        limit_blocks = cacheable_tokens(sequence_tokens, self.block_size_tokens) // self.block_size_tokens
        find = self._pool.find
        matched = min(previous_blocks, limit_blocks)
        if matched and find(hashes[matched - 1]) is None:
            matched = bisect_left(range(matched), True, key=lambda index: find(hashes[index]) is None)
        while matched < limit_blocks and find(hashes[matched]) is not None:
            matched += 1
        return matched

    # A leader is the sequence that computes a block now; a follower wants the same block.

    def lead(self, sequence_id: int, hashes: Sequence[BlockHash]) -> None:
        """Record that `sequence_id` computes these blocks; a block that has a leader keeps it."""
        for block_hash in hashes:
            self._leaders.setdefault(block_hash, sequence_id)

    def leader_of(self, block_hash: BlockHash) -> int | None:
        """The sequence that computes this block now."""
        return self._leaders.get(block_hash)

    def stop_leading(self, sequence_id: int, hashes: Sequence[BlockHash]) -> None:
        """Remove the leader: its blocks are committed, or it stopped. Followers match again, or lead."""
        for block_hash in hashes:
            if self._leaders.get(block_hash) == sequence_id:
                del self._leaders[block_hash]

    @property
    def led_blocks(self) -> int:
        """Blocks that some sequence computes now."""
        return len(self._leaders)


def shared_blocks(hashes: Sequence[BlockHash], others: Sequence[BlockHash], known_blocks: int) -> int:
    """Length of the common prefix of two chains of hashes, at least `known_blocks`, in O(log blocks)."""
    end = min(len(hashes), len(others))
    return bisect_left(range(end), True, known_blocks, key=lambda index: hashes[index] != others[index])
