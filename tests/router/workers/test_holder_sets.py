"""Entries of the block table against plain sets."""

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_router.workers.holder_sets import (
    HIGHEST_LEVEL,
    LISTED,
    MAX_SLOTS,
    at_level,
    holders,
    holds,
    joined,
    level,
    only_holder,
    slots_of,
    without,
)

slots = st.integers(0, MAX_SLOTS - 1) | st.integers(0, 20)


def entry_of(held: list[int], level_of_use: int = 0) -> int:
    entry = 0
    for slot in held:
        entry = joined(entry, slot)
    return at_level(entry, level_of_use)


@settings(max_examples=300)
@given(
    st.lists(slots, unique=True, min_size=1, max_size=3 * LISTED), st.integers(0, HIGHEST_LEVEL), st.data()
)
def test_an_entry_is_a_set_of_slots_and_a_level(
    held: list[int], level_of_use: int, data: st.DataObject
) -> None:
    entry = entry_of(held, level_of_use)
    gone = data.draw(st.sets(st.sampled_from(held) | slots))

    left = without(entry, sum(1 << slot for slot in gone))

    assert list(slots_of(holders(entry))) == sorted(held)
    assert level(entry) == level_of_use
    assert only_holder(entry) == (held[0] if len(held) == 1 else None)
    assert all(holds(entry, slot) for slot in held)
    assert not any(holds(entry, slot) for slot in gone.difference(held))
    assert list(slots_of(holders(left))) == sorted(set(held) - gone)
    assert level(left) == (level_of_use if set(held) - gone else 0)


@given(st.lists(slots, unique=True, min_size=1, max_size=2), st.integers(0, HIGHEST_LEVEL))
def test_blocks_of_the_same_one_or_two_holders_have_equal_entries(held: list[int], level_of_use: int) -> None:
    assert entry_of(held, level_of_use) == entry_of(held[::-1], level_of_use)


def test_a_further_holder_of_a_thousand_takes_at_most_16_bytes() -> None:
    # Python's allocator rounds up to 16 bytes. Two holders are the exception, which blocks share.
    for count in range(3, 100):
        entry = entry_of(list(range(1000 - count, 1000)), HIGHEST_LEVEL)
        assert -(-sys.getsizeof(entry) // 16) * 16 <= 16 * (count - 1), count
