"""Pending blocks and leases: what is being computed, and that nothing is left behind."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_router.routing.leases import Charge, Leases
from warmfleet_router.routing.open_dispatches import UnreportedLoad
from warmfleet_router.routing.pending_blocks import SETTLE_SECONDS, PendingBlocks, PrefixMatch
from warmfleet_testing.router.picker_fleet import PickerFleet, chain, prompts

HASHES = tuple(BlockHash(bytes([number]) * 16) for number in range(8))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Residents:
    """What one worker holds, in place of the index."""

    def __init__(self, *held: BlockHash) -> None:
        self.held = set(held)

    def holds(self, uid: str, block_hash: BlockHash) -> bool:
        return uid == "a" and block_hash in self.held


EMPTY = Residents()


def test_a_dispatched_prefix_counts_until_its_lease_fails() -> None:
    pending = PendingBlocks(Clock())

    ticket = pending.insert("a", HASHES[:4])

    assert pending.match("a", HASHES, 0, EMPTY) == PrefixMatch(blocks=4, pending_blocks=4)
    assert pending.match("b", HASHES, 0, EMPTY) == PrefixMatch(0, 0)
    pending.drop(ticket)
    assert pending.match("a", HASHES, 0, EMPTY) == PrefixMatch(0, 0)


def test_pending_blocks_continue_a_resident_run() -> None:
    pending = PendingBlocks(Clock())
    pending.insert("a", HASHES[2:4])

    assert pending.match("a", HASHES, 2, Residents(*HASHES[:2])) == PrefixMatch(blocks=4, pending_blocks=2)


def test_what_is_not_stored_two_seconds_after_the_first_byte_is_dropped() -> None:
    clock = Clock()
    pending = PendingBlocks(clock)
    ticket = pending.insert("a", HASHES)
    clock.now += 60  # a long prefill is no reason
    assert pending.match("a", HASHES, 0, EMPTY).blocks == 8

    pending.settle(ticket)
    clock.now += SETTLE_SECONDS - 0.1
    assert pending.match("a", HASHES, 0, EMPTY).blocks == 8
    clock.now += 0.2

    assert pending.match("a", HASHES, 0, EMPTY).blocks == 0
    assert pending.blocks == 0


def test_a_block_that_was_stored_and_evicted_is_not_pending_any_more() -> None:
    pending = PendingBlocks(Clock())
    pending.insert("a", HASHES[:4])
    pending.stored("a", HASHES[:4])
    assert pending.match("a", HASHES, 4, Residents(*HASHES[:4])) == PrefixMatch(4, 0)

    evicted = pending.match("a", HASHES, 0, EMPTY)

    assert evicted == PrefixMatch(0, 0)


def test_an_entry_whose_block_was_stored_takes_no_claim_of_a_younger_one() -> None:
    clock = Clock()
    pending = PendingBlocks(clock)
    failed = pending.insert("a", HASHES[:4])
    settled = pending.insert("a", HASHES[:4])
    pending.stored("a", HASHES[:4])
    pending.insert("a", HASHES[:4])  # they were evicted since

    pending.settle(settled)
    clock.now += SETTLE_SECONDS
    assert pending.match("a", HASHES, 0, EMPTY) == PrefixMatch(4, 4)
    assert pending.claims("a", HASHES[0]) == 1
    pending.drop(settled)
    pending.drop(failed)

    assert pending.match("a", HASHES, 0, EMPTY) == PrefixMatch(4, 4)
    assert pending.claims("a", HASHES[0]) == 1
    assert pending.blocks == 4


def test_entries_whose_time_is_over_are_removed_by_the_next_event_without_a_query() -> None:
    clock = Clock()
    pending = PendingBlocks(clock, max_blocks=8)
    pending.settle(pending.insert("a", HASHES))
    clock.now += SETTLE_SECONDS

    pending.stored("b", [])
    assert not pending._entries

    pending.settle(pending.insert("a", HASHES))
    clock.now += SETTLE_SECONDS
    pending.insert("b", HASHES)
    assert list(pending._claims) == ["b"]
    assert pending.blocks == 8


def test_an_entry_whose_time_is_over_does_not_hide_a_younger_one() -> None:
    clock = Clock()
    pending = PendingBlocks(clock)
    pending.settle(pending.insert("a", HASHES[:4]))
    pending.insert("a", HASHES[:2])

    clock.now += SETTLE_SECONDS

    assert pending.match("a", HASHES, 0, EMPTY).blocks == 2
    assert [pending.claims("a", HASHES[number]) for number in (0, 3)] == [1, 0]
    assert pending.blocks == 2


def test_a_prefix_stays_pending_while_another_request_still_computes_it() -> None:
    pending = PendingBlocks(Clock())
    leader = pending.insert("a", HASHES[:4])
    pending.insert("a", HASHES[:6])

    pending.drop(leader)

    assert pending.match("a", HASHES, 0, EMPTY).blocks == 6


def test_the_number_of_pending_blocks_is_bounded() -> None:
    pending = PendingBlocks(Clock(), max_blocks=8)
    pending.insert("a", HASHES[:6])

    pending.insert("b", HASHES[:6])

    assert pending.blocks == 6
    assert pending.match("b", HASHES, 0, EMPTY).blocks == 0


async def test_a_lease_charges_tokens_to_the_first_byte_and_a_seat_to_the_last() -> None:
    leases = Leases("r", Clock())

    async with leases.lease(Charge("a", uncached_tokens=100, blocks=7, new_hashes=HASHES)) as lease:
        before = leases.dispatches.unreported("a", {})
        lease.seated()
        lease.first_byte()
        during = leases.dispatches.unreported("a", {})
    after = leases.dispatches.unreported("a", {})

    assert before == UnreportedLoad(tokens=100, seats=1, blocks=7)
    assert during == UnreportedLoad(tokens=0, seats=1, blocks=7)
    assert after == UnreportedLoad()


async def test_a_lease_that_fails_before_its_first_byte_takes_its_pending_blocks_along() -> None:
    leases = Leases("r", Clock())

    with pytest.raises(OSError):
        async with leases.lease(Charge("a", uncached_tokens=1, blocks=1, new_hashes=HASHES)):
            raise OSError

    assert leases.pending.blocks == 0


@settings(max_examples=100)
@given(
    plans=st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 1000),
            st.integers(0, 8),
            st.sampled_from(["success", "error", "cancelled", "cancelled after the first byte"]),
        ),
        max_size=20,
    )
)
def test_however_leases_end_the_gauges_return_to_zero(plans: list[tuple[str, int, int, str]]) -> None:
    clock = Clock()
    leases = Leases("r", clock)

    async def one(uid: str, tokens: int, blocks: int, ending: str) -> None:
        async with leases.lease(Charge(uid, tokens, blocks, new_hashes=HASHES[:blocks])) as lease:
            await asyncio.sleep(0)
            if ending == "error":
                raise OSError
            if ending != "cancelled":
                lease.seated()
                lease.first_byte()
            if ending != "success":
                await asyncio.Event().wait()

    async def everything() -> None:
        tasks = [asyncio.create_task(one(*plan)) for plan in plans]
        for _ in range(5):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(everything())
    clock.now += SETTLE_SECONDS + 1

    for uid in "ab":
        assert leases.dispatches.unreported(uid, {}) == UnreportedLoad()
        assert leases.dispatches.open_count(uid) == 0
    assert leases.pending.blocks == 0


PENDING_EVENTS = st.tuples(
    st.sampled_from(["insert", "settle", "drop", "stored", "forget", "wait"]),
    st.sampled_from("ab"),
    st.integers(0, 7),
)


@settings(max_examples=200)
@given(events=st.lists(PENDING_EVENTS, max_size=30))
def test_the_workers_of_a_prompts_first_block_are_found_until_their_entries_end(
    events: list[tuple[str, str, int]],
) -> None:
    clock = Clock()
    pending = PendingBlocks(clock, max_blocks=20)
    tickets = [0]
    for event, uid, number in events:
        ticket = tickets[number % len(tickets)]
        if event == "insert":
            tickets.append(pending.insert(uid, HASHES[number:], HASHES[number : number + 1]))
        elif event == "stored":
            pending.stored(uid, HASHES[:number])
        elif event == "forget":
            pending.forget(uid)
        elif event == "wait":
            clock.now += SETTLE_SECONDS / 2
        else:
            getattr(pending, event)(ticket)

        entries = pending._entries.values()
        for first in HASHES:
            found = set(pending.workers_beginning(first))
            assert found == {entry.uid for entry in entries if first in entry.first_hashes}

    for uid in "ab":
        pending.forget(uid)
    assert not pending._beginning


def test_a_dispatch_names_the_first_blocks_that_it_computes_of_its_prompts() -> None:
    fleet = PickerFleet("a")
    held, new = list(range(64)), list(range(1000, 1064))
    fleet.store("a", chain(held)[:2])

    charge = fleet.pick(prompts(held, new, new)).charge

    assert set(charge.new_hashes) == {*chain(held)[2:], *chain(new)}
    assert charge.first_hashes == (chain(new)[0],)
