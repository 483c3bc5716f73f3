"""The block pool alone, and as a state machine against a pool made of plain lists and dicts."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from warmfleet_contracts.cache.blocks import BlockHash, CacheIdentity, cacheable_tokens
from warmfleet_worker.kv_cache.block_pool import BlockPool, BlockState
from warmfleet_worker.kv_cache.block_table import BlockTable, blocks_for
from warmfleet_worker.kv_cache.prefix_cache import PrefixCache

BLOCK_SIZE_TOKENS = 2
ROOT = BlockHash(b"root-of-the-test")


def hash_of(number):
    return BlockHash(number.to_bytes(16, "little"))


def committed(pool, *numbers):
    """Blocks with these hashes, held once."""
    blocks = zip(pool.allocate(len(numbers)), numbers, strict=True)
    return [pool.commit(block, hash_of(number), ROOT) for block, number in blocks]


def test_a_block_is_matchable_only_after_its_commit():
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    assert block.state is BlockState.COMPUTING
    assert pool.find(hash_of(1)) is None

    pool.commit(block, hash_of(1), ROOT)

    assert block.state is BlockState.COMMITTED
    assert pool.find(hash_of(1)) is block


def test_a_freed_block_can_be_hit_again():
    pool = BlockPool(4)
    blocks = committed(pool, 1, 2)
    pool.release(blocks)
    assert [block.state for block in blocks] == [BlockState.EVICTABLE] * 2
    assert (pool.free_blocks, pool.evictable_blocks, pool.pinned_blocks) == (2, 2, 0)

    pool.pin(blocks)

    assert (pool.free_blocks, pool.evictable_blocks, pool.pinned_blocks) == (2, 0, 2)
    assert pool.find(hash_of(2)) is blocks[1]


def test_a_failed_block_is_free_and_never_matched():
    pool = BlockPool(2)
    blocks = pool.allocate(2)

    pool.release(blocks)

    assert pool.free_blocks == 2
    assert not pool.resident_hashes
    assert not pool.take_changes()


def test_blocks_without_content_are_used_before_any_cached_one():
    pool = BlockPool(3)
    pool.release(committed(pool, 1))
    pool.release(pool.allocate(2))

    blocks = pool.allocate(2)

    assert pool.find(hash_of(1)) is not None
    assert pool.evicted_blocks == 0
    assert pool.allocate(1)[0] not in blocks
    assert pool.evicted_blocks == 1
    assert pool.find(hash_of(1)) is None


def test_the_tail_of_a_sequence_is_evicted_before_its_head():
    pool = BlockPool(3)
    pool.release(committed(pool, 1, 2, 3))

    gone = []
    for _ in range(3):
        before = set(pool.resident_hashes)
        pool.allocate(1)
        gone += before - set(pool.resident_hashes)

    assert gone == [hash_of(3), hash_of(2), hash_of(1)]


def test_the_sequence_used_longest_ago_is_evicted_first():
    pool = BlockPool(4)
    older, newer = committed(pool, 1, 2), committed(pool, 3, 4)
    pool.release(older)
    pool.release(newer)
    pool.pin(older)  # a hit
    pool.release(older)

    pool.allocate(2)

    assert pool.resident_hashes == {hash_of(1), hash_of(2)}


def test_a_shared_block_stays_until_its_last_holder_lets_go():
    pool = BlockPool(2)
    blocks = committed(pool, 1)
    pool.pin(blocks)

    pool.release(blocks)
    assert pool.pinned_blocks == 1
    pool.release(blocks)

    assert pool.pinned_blocks == 0
    assert pool.evictable_blocks == 1


def test_equal_content_is_kept_once_and_the_second_copy_is_free_at_once():
    pool = BlockPool(4)
    (first,) = committed(pool, 1)
    (copy,) = pool.allocate(1)

    stays = pool.commit(copy, hash_of(1), ROOT)

    assert stays is first
    assert first.references == 2
    assert copy.state is BlockState.FREE
    assert pool.take_changes().stored == (hash_of(1),)


def test_an_eviction_and_a_new_commit_of_the_same_content_report_nothing():
    pool = BlockPool(1)
    pool.release(committed(pool, 1))
    pool.take_changes()

    pool.release(committed(pool, 1))

    assert pool.evicted_blocks == 1
    assert not pool.take_changes()


def test_a_commit_that_is_evicted_before_its_report_is_no_change():
    pool = BlockPool(1)
    pool.release(committed(pool, 1))

    pool.allocate(1)

    assert not pool.take_changes()


def test_clearing_forgets_all_but_what_is_held():
    pool = BlockPool(4)
    held = committed(pool, 1)
    pool.release(committed(pool, 2, 3))
    pool.take_changes()

    assert pool.clear() == 2

    changes = pool.take_changes()
    assert changes.cleared
    assert changes.stored == (hash_of(1),)
    assert changes.removed == ()
    assert (pool.free_blocks, pool.evictable_blocks) == (3, 0)
    pool.release(held)
    assert pool.find(hash_of(1)) is held[0]


def test_content_that_means_nothing_any_more_is_poisoned_before_reuse():
    poisoned = []
    pool = BlockPool(3, poison=poisoned.extend)

    blocks = pool.allocate(2)
    pool.commit(blocks[0], hash_of(1), ROOT)
    pool.release(blocks)
    assert poisoned == [blocks[1].block_id]

    pool.allocate(3)
    assert poisoned == [blocks[1].block_id, blocks[0].block_id]


class NaivePool:
    """The same contract with lists and dicts: content by name, an explicit order of reuse."""

    def __init__(self, total_blocks):
        self.order = [None] * total_blocks  # content of blocks without a holder, next to use first
        self.holders = {}  # content -> number of holders
        self.computing = 0

    def resident(self):
        return set(self.holders)

    def allocate(self, count):
        for content in self.order[:count]:
            if content is not None:
                del self.holders[content]
        del self.order[:count]
        self.computing += count

    def pin(self, contents):
        for content in contents:
            if self.holders[content] == 0:
                self.order = [entry for entry in self.order if entry != content]
            self.holders[content] += 1

    def commit(self, content):
        self.computing -= 1
        if content in self.holders:
            self.pin([content])
            self.order.insert(0, None)
        else:
            self.holders[content] = 1

    def release(self, contents, computing):
        for _ in range(computing):
            self.order.insert(0, None)
        self.computing -= computing
        for content in reversed(contents):
            self.holders[content] -= 1
            if self.holders[content] == 0:
                self.order.append(content)

    def clear(self):
        self.holders = {content: n for content, n in self.holders.items() if n}
        self.order = [None] * len(self.order)

    def drop(self, contents):
        for content in contents:
            del self.holders[content]
        kept = [entry for entry in self.order if entry not in contents]
        self.order = [None] * len(contents) + kept


class PoolMachine(RuleBasedStateMachine):
    """Sequences over a tiny alphabet start, compute block by block, end, fail; the cache is cleared."""

    steps = 0
    hits = 0
    evictions = 0
    merged_copies = 0
    dropped_descendants = 0

    @initialize(total_blocks=st.integers(4, 12))
    def start(self, total_blocks):
        self.pool = BlockPool(total_blocks)
        self.cache = PrefixCache(self.pool, CacheIdentity(b"identity"), BLOCK_SIZE_TOKENS)
        self.naive = NaivePool(total_blocks)
        self.live = []  # (table, hashes, contents by block)
        self.followed = set()
        self.content_of = {}

    @rule(
        tokens=st.lists(st.sampled_from([0, 0, 0, 1]), min_size=3, max_size=9),
        salt=st.sampled_from([b"", b"tenant"]),
    )
    def begin(self, tokens, salt):
        hashes = []
        self.cache.extend_hashes(hashes, self.cache.root(salt), tokens)
        contents = [(salt, tuple(tokens[: end * BLOCK_SIZE_TOKENS])) for end in range(1, len(hashes) + 1)]
        self.content_of.update(zip(hashes, contents, strict=True))
        expected = 0
        for content in contents[: cacheable_tokens(len(tokens), BLOCK_SIZE_TOKENS) // BLOCK_SIZE_TOKENS]:
            if content not in self.naive.resident():
                break
            expected += 1

        hit = self.cache.match(hashes, len(tokens))

        assert len(hit.blocks) == expected
        assert hit.cached_tokens == expected * BLOCK_SIZE_TOKENS
        missing = blocks_for(len(tokens), BLOCK_SIZE_TOKENS) - expected
        if missing + hit.evictable_blocks > self.pool.available_blocks:
            return
        table = BlockTable()
        self.pool.pin(hit.blocks)
        table.adopt(hit.blocks)
        table.extend(self.pool.allocate(missing))
        self.naive.pin(contents[:expected])
        self.naive.allocate(missing)
        self.live.append((table, hashes, contents))
        PoolMachine.hits += expected > 0

    @precondition(lambda self: self.live)
    @rule(data=st.data(), blocks=st.integers(1, 4))
    def compute(self, data, blocks):
        self.commit(data.draw(st.sampled_from(self.live)), blocks)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def finish(self, data):
        entry = data.draw(st.sampled_from(self.live))
        self.commit(entry, len(entry[0]))
        self.let_go(entry)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fail(self, data):
        self.let_go(data.draw(st.sampled_from(self.live)))

    @precondition(lambda self: len(self.naive.resident()) > 4)
    @rule()
    def clear(self):
        self.pool.clear()
        self.naive.clear()

    @precondition(lambda self: self.naive.resident())
    @rule(data=st.data())
    def drop(self, data):
        salt, tokens = data.draw(st.sampled_from(sorted(self.naive.resident())))
        wrong = {one for one in self.naive.resident() if one[0] == salt and one[1][: len(tokens)] == tokens}
        (block_hash,) = (name for name, content in self.content_of.items() if content == (salt, tokens))

        blocks = self.pool.with_descendants(block_hash)

        assert {self.content_of[block.block_hash] for block in blocks} == wrong
        assert len(blocks) == len(wrong)
        for entry in [entry for entry in self.live if wrong & set(entry[2][: entry[0].committed_blocks])]:
            self.let_go(entry)
        self.pool.drop(blocks)
        self.naive.drop(wrong)
        PoolMachine.dropped_descendants += len(wrong) - 1

    def commit(self, entry, blocks):
        table, hashes, contents = entry
        for index in range(table.committed_blocks, min(table.committed_blocks + blocks, len(hashes))):
            own = table.next_uncommitted
            parent = hashes[index - 1] if index else self.cache.root(contents[index][0])
            stays = self.pool.commit(own, hashes[index], parent)
            table.commit_next(stays)
            self.naive.commit(contents[index])
            PoolMachine.merged_copies += stays is not own

    def let_go(self, entry):
        self.live.remove(entry)
        table, _, contents = entry
        done = table.committed_blocks
        self.naive.release(contents[:done], len(table) - done)
        self.pool.release(table.take_all())

    @invariant()
    def every_block_is_in_one_place(self):
        PoolMachine.steps += 1
        pool = self.pool
        PoolMachine.evictions = max(PoolMachine.evictions, pool.evicted_blocks)
        assert pool.free_blocks + pool.evictable_blocks + pool.pinned_blocks == pool.total_blocks
        assert pool.available_blocks == len(self.naive.order)
        assert pool.evictable_blocks == sum(content is not None for content in self.naive.order)
        listed = []
        block = pool._ends.following
        while block is not pool._ends:
            assert block.following.previous is block
            assert block.references == 0
            listed.append(block)
            block = block.following
        assert len(listed) == len(set(listed)) == pool.available_blocks

    @invariant()
    def a_writable_block_has_one_owner_and_a_shared_one_is_read_only(self):
        holders = {}
        for table, hashes, _ in self.live:
            for index, block in enumerate(table.blocks):
                holders.setdefault(block, []).append(index < table.committed_blocks)
                if index < table.committed_blocks:
                    assert block.block_hash == hashes[index]
                    assert self.pool.find(hashes[index]) is block
        for block, read_only in holders.items():
            assert block.references == len(read_only)
            assert all(read_only) or len(read_only) == 1
        assert self.pool.pinned_blocks == len(holders)

    @invariant()
    def the_model_holds_the_same_content(self):
        resident = {self.content_of[block_hash] for block_hash in self.pool.resident_hashes}
        assert resident == self.naive.resident()
        held = sum(holders > 0 for holders in self.naive.holders.values())
        assert self.pool.pinned_blocks == self.naive.computing + held

    @invariant()
    def the_changes_add_up_to_what_is_resident(self):
        changes = self.pool.take_changes()
        if changes.cleared:
            self.followed.clear()
        assert self.followed.isdisjoint(changes.stored)
        self.followed |= set(changes.stored)
        assert self.followed >= set(changes.removed)
        self.followed -= set(changes.removed)
        assert self.followed == self.pool.resident_hashes


def test_the_pool_behaves_like_its_naive_model_over_thousands_of_steps():
    run_state_machine_as_test(
        PoolMachine,
        settings=settings(
            max_examples=150,
            stateful_step_count=50,
            suppress_health_check=list(HealthCheck),
        ),
    )

    assert PoolMachine.steps >= 2_000
    assert PoolMachine.hits > 0
    assert PoolMachine.evictions > 0
    assert PoolMachine.merged_copies > 0
    assert PoolMachine.dropped_descendants > 0
