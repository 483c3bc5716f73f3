"""What is remembered of blocks that no worker holds, and what it may cost."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.kv_events import Frame
from warmfleet_router.economics.ghost_list import PARTS, GhostList
from warmfleet_router.economics.misses import MissCause

BLOCK = BlockHash(bytes(range(16)))


def block(number: int) -> BlockHash:
    return BlockHash((number * 0x9E3779B97F4A7C15 % 2**128).to_bytes(16, "little"))


def stored(*hashes: bytes, epoch: str = "e", cleared: bool = False) -> Frame:
    return Frame(epoch=epoch, seq=1, stored=list(hashes), cleared=cleared)


def removed(*hashes: bytes, epoch: str = "e") -> Frame:
    return Frame(epoch=epoch, seq=1, removed=list(hashes))


def test_a_block_that_was_never_seen_has_no_cause() -> None:
    assert GhostList().cause_of_loss(BLOCK) is None


def test_what_a_living_worker_removed_was_evicted() -> None:
    ghosts = GhostList()
    ghosts.frame_arrived("a", stored(BLOCK))
    assert ghosts.cause_of_loss(BLOCK) is None

    ghosts.frame_arrived("a", removed(BLOCK))

    assert ghosts.cause_of_loss(BLOCK) is MissCause.CAPACITY


@pytest.mark.parametrize("frame", [stored(BLOCK), removed(BLOCK)])
def test_what_a_worker_held_or_evicted_is_lost_once_it_left(frame: Frame) -> None:
    ghosts = GhostList()
    ghosts.frame_arrived("a", frame)

    ghosts.forget("a")

    assert ghosts.cause_of_loss(BLOCK) is MissCause.LOST


def test_a_restart_and_a_clearing_lose_what_was_held() -> None:
    one, two, three = block(1), block(2), block(3)
    ghosts = GhostList()
    ghosts.frame_arrived("a", stored(one))
    ghosts.frame_arrived("a", stored(two, epoch="e2"))
    assert ghosts.cause_of_loss(one) is MissCause.LOST
    assert ghosts.cause_of_loss(two) is None

    ghosts.frame_arrived("a", stored(three, epoch="e2", cleared=True))

    assert ghosts.cause_of_loss(two) is MissCause.LOST
    assert ghosts.cause_of_loss(three) is None


def test_a_process_that_left_and_came_back_errs_from_capacity_to_lost_until_a_block_is_stored_again() -> None:
    before, held, missed, after = block(1), block(2), block(3), block(4)
    ghosts = GhostList()
    ghosts.frame_arrived("a", stored(before, held, missed))
    ghosts.frame_arrived("a", removed(before))

    ghosts.forget("a")
    ghosts.frame_arrived("a", stored(held, after))  # its snapshot, under the epoch that it had

    assert ghosts.cause_of_loss(before) is MissCause.LOST, "although a living process evicted it"
    assert ghosts.cause_of_loss(missed) is MissCause.LOST, "although it was evicted meanwhile"
    ghosts.frame_arrived("a", removed(held, after))
    assert ghosts.cause_of_loss(held) is ghosts.cause_of_loss(after) is MissCause.CAPACITY
    ghosts.frame_arrived("a", stored(before))
    ghosts.frame_arrived("a", removed(before))
    assert ghosts.cause_of_loss(before) is MissCause.CAPACITY


def test_an_eviction_is_as_old_as_what_its_worker_evicted_since() -> None:
    ghosts = GhostList()
    ghosts.frame_arrived("a", removed(BLOCK))
    ghosts.frame_arrived("b", removed(*map(block, range(500, 900))))

    for first in range(0, 200, 10):
        assert ghosts.evicted_since(BLOCK) == pytest.approx(first, abs=8)
        ghosts.frame_arrived("a", removed(*map(block, range(first, first + 10))))

    assert ghosts.evicted_since(block(195)) <= 8
    ghosts.frame_arrived("a", stored(BLOCK))
    assert ghosts.evicted_since(BLOCK) == 0
    ghosts.forget("a")
    assert ghosts.evicted_since(block(5)) == 0


def test_the_end_of_an_earlier_epoch_ends_nothing() -> None:
    ghosts = GhostList()
    ghosts.frame_arrived("a", removed(BLOCK, epoch="e2"))

    ghosts.ended("a", "e")
    ghosts.ended("b", "e2")
    ghosts.forget("c")

    assert ghosts.cause_of_loss(BLOCK) is MissCause.CAPACITY
    ghosts.ended("a", "e2")
    assert ghosts.cause_of_loss(BLOCK) is MissCause.LOST


@given(
    changes=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5_000), st.booleans()), max_size=400),
    max_blocks=st.sampled_from((1, PARTS, PARTS * 2)),
)
def test_no_changes_make_it_hold_more_than_its_bound(
    changes: list[tuple[str, int, bool]], max_blocks: int
) -> None:
    ghosts = GhostList(max_blocks)

    for uid, number, is_stored in changes:
        hashes = [block(number + offset) for offset in range(20)]
        ghosts.frame_arrived(uid, stored(*hashes) if is_stored else removed(*hashes))

    assert len(ghosts) <= max(max_blocks, PARTS)
    if changes:
        assert ghosts.cause_of_loss(hashes[-1]) is (None if is_stored else MissCause.CAPACITY)


def test_a_frame_with_what_is_no_hash_is_ignored() -> None:
    ghosts = GhostList()

    ghosts.frame_arrived("a", removed(BLOCK, b""))
    ghosts.frame_arrived("a", removed(b"x" * 1_000_000))

    assert len(ghosts) == 0


def test_a_garbage_collection_walks_no_block() -> None:
    ghosts = GhostList()
    ghosts.frame_arrived("a", stored(*map(block, range(10_000))))

    parts = [held for held in gc.get_referents(ghosts) if isinstance(held, tuple)]
    tables = [table for part in parts for table in part if isinstance(table, dict)]
    assert len(tables) == PARTS
    assert not any(map(gc.is_tracked, tables))
