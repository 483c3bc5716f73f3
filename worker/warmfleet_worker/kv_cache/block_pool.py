"""The fixed set of KV blocks and the sequences that hold them (PagedAttention, Kwon et al. 2023).

All block objects are made at start. A block has one of four states:

    free ──allocate──> computing ──commit──> committed ──last release──> evictable ──reuse, clear──> free
                           └──────release (a failed step, a partial tail)──────────────────────────────┘

Blocks without a holder are in one intrusive, doubly linked list, least recently used first: removal from
its middle is O(1) and allocates nothing. Blocks without a hash are at the front and are used first;
committed ones keep their hash until they are allocated again, so eviction needs no pass of its own.
(After vLLM V1's block pool; unlike it, a hash has one block, see `BlockPool.commit`.)
"""

import enum
import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.resident import ChangeBuffer


class BlockState(enum.Enum):
    """State of a block; follows from its number of holders and whether it has a hash."""

    FREE = "free"
    COMPUTING = "computing"
    """Held and writable by exactly one sequence; never matched."""
    COMMITTED = "committed"
    """Held by one or more sequences, read-only, matchable."""
    EVICTABLE = "evictable"
    """Without a holder, matchable until it is allocated again."""


class Block:
    """One KV block: its number in the arena, its count of holders, and its place in the free list."""

    __slots__ = ("block_hash", "block_id", "following", "parent", "previous", "references", "unused_since")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.references = 0
        self.block_hash: BlockHash | None = None
        self.parent: BlockHash | None = None
        """While it has a hash: that of the block before it, or the root of its chain."""
        self.unused_since = 0.0
        """When its last holder released it, on the pool's clock; of a block without a holder."""
        self.previous = self
        self.following = self

    @property
    def state(self) -> BlockState:
        if self.references:
            return BlockState.COMPUTING if self.block_hash is None else BlockState.COMMITTED
        return BlockState.FREE if self.block_hash is None else BlockState.EVICTABLE

    def __repr__(self) -> str:
        return f"Block({self.block_id}, {self.state.value}, references={self.references})"


class ResidentChanges(msgspec.Struct, frozen=True, gc=False):
    """How the set of matchable hashes changed: first `cleared`, then the two disjoint lists."""

    stored: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    cleared: bool = False

    def __bool__(self) -> bool:
        return self.cleared or bool(self.stored) or bool(self.removed)


class BlockPool:
    """Allocates blocks, counts their holders, and maps hashes to blocks.

    One per engine; used from one thread.

        hit = cache.match(hashes, sequence_tokens)
        pool.pin(hit.blocks)  # before `allocate`, which could evict them
        blocks = pool.allocate(missing_blocks)  # at most `available_blocks`
        pool.release([*hit.blocks, *blocks])
    """

    def __init__(
        self,
        total_blocks: int,
        *,
        poison: Callable[[Sequence[int]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make `total_blocks` free blocks.

        `clock`, in seconds, is read when blocks are released. `poison` is called with the ids of blocks
        whose content is no longer valid, before they are used again: tests fill them with NaN to detect stale
        reads.
        """
        if total_blocks < 1:
            raise ValueError(f"a block pool needs at least one block, not {total_blocks}")
        self.total_blocks = total_blocks
        self.clock = clock
        self.evicted_blocks = 0
        """Committed blocks that were evicted for a new allocation, since start."""
        self._poison = poison
        self._blocks = tuple(Block(block_id) for block_id in range(total_blocks))
        self._by_hash: dict[BlockHash, Block] = {}
        self._listed_blocks = 0
        self._evictable_blocks = 0
        self._changes = ChangeBuffer()
        self._ends = Block(-1)  # sentinel before the first and after the last listed block
        for block in self._blocks:
            self._link(block, before=self._ends)

    @property
    def available_blocks(self) -> int:
        """Blocks that can be allocated: free and evictable."""
        return self._listed_blocks

    @property
    def evictable_blocks(self) -> int:
        return self._evictable_blocks

    @property
    def free_blocks(self) -> int:
        return self._listed_blocks - self._evictable_blocks

    @property
    def pinned_blocks(self) -> int:
        """Blocks that live sequences hold."""
        return self.total_blocks - self._listed_blocks

    @property
    def resident_hashes(self) -> AbstractSet[BlockHash]:
        """Every hash that can be matched now, as a live view."""
        return self._by_hash.keys()

    def find(self, block_hash: BlockHash) -> Block | None:
        """The committed or evictable block with this content, None if there is none. Changes nothing."""
        return self._by_hash.get(block_hash)

    def find_run(self, block_hashes: Iterable[BlockHash]) -> tuple[Block, ...]:
        """The blocks that `find` returns, up to the first None."""
        found: list[Block] = []
        find = self._by_hash.get  # `self.find` takes as long as the rest
        for block_hash in block_hashes:
            block = find(block_hash)
            if block is None:
                break
            found.append(block)
        return tuple(found)

    def has_unused(self, count: int, since: float, kept: Iterable[Block]) -> bool:
        """Whether `allocate(count)` would take free blocks and such as were not used since that time alone.

        `kept` are pinned before: they do not count. Costs O(count).
        """
        but = set(kept)
        block = self._ends.following
        while count > 0:
            if block is self._ends or (block.block_hash is not None and block.unused_since > since):
                return False
            count -= block not in but
            block = block.following
        return True

    def allocate(self, count: int) -> list[Block]:
        """`count` blocks for one writer, least recently used first; evicts what they held.

        The caller checks `available_blocks` first: there is no partial result.
        """
        assert 0 <= count <= self._listed_blocks, (count, self._listed_blocks)
        blocks: list[Block] = []
        evicted: list[Block] = []
        for _ in range(count):
            block = self._ends.following
            self._unlink(block)
            if block.block_hash is not None:
                evicted.append(block)
                self._forget(block)
            block.references = 1
            blocks.append(block)
        self.evicted_blocks += len(evicted)
        self._poison_content(evicted)
        return blocks

    def pin(self, blocks: Iterable[Block]) -> None:
        """Add a holder to committed or evictable blocks."""
        for block in blocks:
            assert block.block_hash is not None, block
            if not block.references:
                self._unlink(block)
            block.references += 1

    def release(self, blocks: Sequence[Block]) -> None:
        """Remove a holder from a sequence's blocks, given in the order of its table.

        Tail first: a prefix is useless once its head is gone, so the tail must be evicted first.
        """
        unhashed: list[Block] = []
        now = self.clock()
        for block in reversed(blocks):
            assert block.references > 0, block
            block.references -= 1
            if block.references:
                continue
            if block.block_hash is None:
                self._link(block, before=self._ends.following)
                unhashed.append(block)
            else:
                block.unused_since = now
                self._link(block, before=self._ends)
        self._poison_content(unhashed)

    def commit(self, block: Block, block_hash: BlockHash, parent: BlockHash) -> Block:
        """Make a full, finite block matchable; returns the block that its holder reads from now on.

        `parent` is the hash of the block before it, or the root of its chain.

        When another block already has the same content, the holder moves to that one and `block` is free
        at once. A prompt that ends at a block edge recomputes its last block on every hit, so without this
        each repetition would leave one more copy. With one block per hash, copies need no counting.
        """
        assert block.state is BlockState.COMPUTING, block
        resident = self._by_hash.get(block_hash)
        if resident is not None:
            self.pin((resident,))
            self.release((block,))
            return resident
        block.block_hash = block_hash
        block.parent = parent
        self._by_hash[block_hash] = block
        self._changes.store(block_hash)
        return block

    def clear(self) -> int:
        """Forget the content of every block without a holder; returns how many there were."""
        forgotten = [block for block in self._by_hash.values() if not block.references]
        for block in forgotten:
            del self._by_hash[_hash_of(block)]
            block.block_hash = None
        self._evictable_blocks = 0
        # Blocks with a holder stay resident: the change is "cleared, then these stored".
        self._changes.clear()
        for block_hash in self._by_hash:
            self._changes.store(block_hash)
        self._poison_content(forgotten)
        return len(forgotten)

    def with_descendants(self, block_hash: BlockHash) -> list[Block]:
        """The matchable blocks whose content begins with that of this one, itself first. Changes nothing.

        Costs O(matchable blocks): only content that proves wrong is looked up by what was computed from it.
        """
        children: dict[BlockHash | None, list[Block]] = {}
        for block in self._by_hash.values():
            children.setdefault(block.parent, []).append(block)
        first = self._by_hash.get(block_hash)
        found = [] if first is None else [first]
        for block in found:
            found += children.get(block.block_hash, ())
        return found

    def drop(self, blocks: Sequence[Block]) -> None:
        """Forget the content of matchable blocks without a holder: they are free."""
        for block in blocks:
            assert block.state is BlockState.EVICTABLE, block
            self._unlink(block)
            self._forget(block)
            self._link(block, before=self._ends.following)
        self._poison_content(blocks)

    def take_changes(self) -> ResidentChanges:
        """The net change of the resident hashes since the last call."""
        cleared, stored, removed = self._changes.take()
        return ResidentChanges(tuple(stored), tuple(removed), cleared)

    @property
    def has_changes(self) -> bool:
        """Whether `take_changes` would return any."""
        return bool(self._changes)

    def _forget(self, block: Block) -> None:
        block_hash = _hash_of(block)
        del self._by_hash[block_hash]
        block.block_hash = None
        self._changes.remove(block_hash)

    def _poison_content(self, blocks: Sequence[Block]) -> None:
        if self._poison is not None and blocks:
            self._poison([block.block_id for block in blocks])

    def _link(self, block: Block, *, before: Block) -> None:
        block.previous = before.previous
        block.following = before
        before.previous.following = block
        before.previous = block
        self._listed_blocks += 1
        if block.block_hash is not None:
            self._evictable_blocks += 1

    def _unlink(self, block: Block) -> None:
        block.previous.following = block.following
        block.following.previous = block.previous
        block.previous = block.following = block
        self._listed_blocks -= 1
        if block.block_hash is not None:
            self._evictable_blocks -= 1


def _hash_of(block: Block) -> BlockHash:
    assert block.block_hash is not None, block
    return block.block_hash
