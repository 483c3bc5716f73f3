"""The block table against a plain dictionary of sets, while passes sweep it."""

import hashlib
import sys

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_router.workers.block_table import COMPACT_BYTES, PARTS, BlockTable
from warmfleet_router.workers.block_use import UseDraws
from warmfleet_router.workers.held_blocks import HeldBlocks
from warmfleet_router.workers.holder_sets import holders, slots_of
from warmfleet_router.workers.table_pass import TablePass
from warmfleet_testing.engine.modelled_worker import hash_of

SLOTS = 16
BLOCKS = 40
SETTINGS = settings(max_examples=60, stateful_step_count=60, derandomize=True)


class TableBesideSets(RuleBasedStateMachine):
    """Slots that hold blocks, and slots that were given up and still stand in the table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = BlockTable()
        self.held: dict[int, set[BlockHash]] = {slot: set() for slot in range(SLOTS)}
        self.gone: set[int] = set()
        self.sweep: TablePass | None = None

    def mask_of(self, slots: set[int]) -> int:
        return sum(1 << slot for slot in slots)

    @rule(slot=st.integers(0, SLOTS - 1), numbers=st.sets(st.integers(0, BLOCKS - 1)))
    def store(self, slot: int, numbers: set[int]) -> None:
        if slot not in self.gone:
            new = {hash_of(number) for number in numbers} - self.held[slot]
            self.table.join(slot, new)
            self.held[slot] |= new

    @rule(slot=st.integers(0, SLOTS - 1), numbers=st.sets(st.integers(0, BLOCKS - 1)))
    def remove(self, slot: int, numbers: set[int]) -> None:
        if slot not in self.gone:
            leaving = {hash_of(number) for number in numbers} & self.held[slot]
            self.table.leave(slot, leaving)
            self.held[slot] -= leaving

    @rule(slot=st.integers(0, SLOTS - 1))
    def give_up(self, slot: int) -> None:
        self.gone.add(slot)

    @precondition(lambda self: self.sweep is None)
    @rule(halves=st.booleans())
    def begin_pass(self, halves: bool) -> None:
        self.sweep = TablePass(
            self.table, gone=self.mask_of(self.gone), halving=UseDraws() if halves else None
        )

    @precondition(lambda self: self.sweep is not None)
    @rule(steps=st.sampled_from([1, 100, 300]))
    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            if self.sweep is not None and not self.sweep.step():
                for slot in slots_of(self.sweep.gone):
                    self.gone.remove(slot)
                    self.held[slot] = set()
                self.sweep = None

    @invariant()
    def holders_are_those_of_the_sets(self) -> None:
        left = ~self.mask_of(self.gone)
        for number in range(BLOCKS):
            block_hash = hash_of(number)
            expected = {slot for slot, held in self.held.items() if block_hash in held} - self.gone
            assert set(slots_of(holders(self.table.entry(block_hash)) & left)) == expected

    def teardown(self) -> None:
        sweep = TablePass(self.table, gone=self.mask_of(self.gone))
        while sweep.step():
            pass
        live = {slot: held for slot, held in self.held.items() if slot not in self.gone}
        everything = set().union(*live.values())
        assert len(self.table) == len(everything)
        for slot, held in live.items():
            others = set().union(*(blocks for other, blocks in live.items() if other != slot))
            sole = sweep.sole_blocks.get(slot)
            assert (sole.blocks if sole else 0) == len(held - others)


def test_the_table_names_the_holders_that_plain_sets_have_in_any_order_of_events() -> None:
    run_state_machine_as_test(TableBesideSets, settings=SETTINGS)


def test_a_table_whose_blocks_change_all_the_time_stays_compact() -> None:
    table, blocks = BlockTable(), 50_000
    hashes = [BlockHash(hashlib.blake2b(b"%d" % n, digest_size=16).digest()) for n in range(5 * blocks)]
    table.join(0, hashes[:blocks])

    largest = 0
    for start in range(0, 4 * blocks, 100):
        table.leave(0, hashes[start : start + 100])
        table.join(0, hashes[start + blocks : start + blocks + 100])
        largest = max(largest, sum(map(sys.getsizeof, table._parts)))

    assert len(table) == blocks
    assert largest <= 1.15 * COMPACT_BYTES * blocks


def test_blocks_stand_in_the_order_in_which_a_worker_stored_them() -> None:
    """Whose use is counted next is drawn in this order, which must be the same in every process."""
    table, hashes = BlockTable(), [hash_of(number) for number in range(4000)]

    HeldBlocks("epoch", 0, table, slot=0).change(1, stored=hashes)

    for number in range(PARTS):
        assert list(table.part(number)) == [block_hash for block_hash in hashes if block_hash[-1] == number]
