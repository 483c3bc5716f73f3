"""What a router without events believes is a list of what it sent, and reaches its index as frames."""

import random

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.kv_events import Frame, LoadReport
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_simulator.router.remembered_blocks import RememberedBlocks

LOAD = LoadReport(total_blocks=8)


def hashes(*numbers: int) -> list[BlockHash]:
    return [BlockHash(number.to_bytes(16, "little")) for number in numbers]


def test_the_index_holds_the_blocks_that_were_sent_last() -> None:
    index, remembered = PrefixIndex(), RememberedBlocks("e", capacity_blocks=4)
    index.connected("w", "e")
    for frame in remembered.frames(Frame(epoch="e", seq=9, snapshot_left=0, load=LOAD)):
        index.apply("w", frame)

    remembered.dispatched(hashes(1, 2, 3))
    remembered.dispatched(hashes(1, 4, 5))
    for frame in remembered.frames(Frame(epoch="e", seq=10, stored=hashes(77), load=LOAD)):
        assert frame.load == LOAD
        index.apply("w", frame)

    # The tail of the older prompt is forgotten first; what the worker itself reports is not seen.
    assert [index.holds("w", block) for block in hashes(1, 2, 3, 4, 5, 77)] == [
        True, True, False, True, True, False,
    ]  # fmt: skip


def test_frames_of_a_random_history_apply_and_stay_within_the_capacity() -> None:
    draw, index, remembered = random.Random(1), PrefixIndex(), RememberedBlocks("e", capacity_blocks=20)
    index.connected("w", "e")
    for seq in range(200):
        if seq and draw.random() < 0.8:
            head = draw.randrange(10) * 100
            remembered.dispatched(hashes(*range(head, head + draw.randint(1, 15))))
        received = Frame(epoch="e", seq=seq, snapshot_left=None if seq else 0, load=LOAD)
        for frame in remembered.frames(received):
            index.apply("w", frame)
        assert index.is_precise("w")
        assert index.resident_blocks("w") <= 20


def test_a_stream_that_begins_again_gets_all_that_is_remembered() -> None:
    index, remembered = PrefixIndex(), RememberedBlocks("e", capacity_blocks=9)
    remembered.dispatched(hashes(1, 2))
    assert len(remembered.frames(Frame(epoch="e", seq=1, load=LOAD))) == 1

    index.connected("w", "e")
    for left in (1, 0):
        for frame in remembered.frames(Frame(epoch="e", seq=1, snapshot_left=left, load=LOAD)):
            index.apply("w", frame)

    assert index.matched_blocks("w", hashes(1, 2, 3)) == 2
