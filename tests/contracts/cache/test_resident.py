"""The reducer against a plain set."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.kv_events import SNAPSHOT_CHUNK_HASHES, Frame, LoadReport, ResidentDigest
from warmfleet_contracts.cache.resident import (
    ChangeBuffer,
    PositionGapError,
    ResidentSet,
    SetMismatchError,
    SnapshotAssembly,
)
from warmfleet_contracts.errors import ContractError
from warmfleet_testing.engine.digests import digest_of


def hash_of(number):
    return BlockHash(number.to_bytes(16, "big"))


def hashes_of(numbers):
    return [hash_of(number) for number in numbers]


def frame_of(resident, **changes):
    return Frame(**{"epoch": resident.epoch, "seq": resident.seq, "digest": resident.digest, **changes})


def assembled(frames):
    assembly = SnapshotAssembly(frames[0], ResidentSet)
    return [assembly.add(frame) for frame in frames][-1]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))))
def test_two_sides_that_apply_the_same_frames_hold_the_same_set(steps):
    mirror, router, model = ResidentSet("epoch"), ResidentSet("epoch"), set()
    for cleared, joining, leaving in steps:
        model = set() if cleared else model
        stored = hashes_of(joining - model)
        removed = [] if cleared else hashes_of(leaving & model)
        model = (model | joining) - (set() if cleared else leaving & model)
        mirror.change(mirror.seq + 1, cleared=cleared, stored=stored, removed=removed)

        router.apply(frame_of(mirror, cleared=cleared, stored=stored, removed=removed))

        expected = hashes_of(model)
        assert set(router) == set(mirror) == set(expected)
        assert router.digest == digest_of(expected)
        assert router.seq == mirror.seq


def test_a_repeated_frame_changes_nothing():
    resident = ResidentSet("epoch", 4, hashes_of([1]))
    frame = Frame(
        epoch="epoch", seq=5, stored=hashes_of([2]), digest=ResidentSet("epoch", 5, hashes_of([1, 2])).digest
    )

    assert resident.apply(frame)
    assert not resident.apply(frame)
    assert not resident.apply(msgspec.structs.replace(frame, seq=3))
    assert set(resident) == set(hashes_of([1, 2]))


@pytest.mark.parametrize(
    "changes",
    [
        {"seq": 6, "stored": hashes_of([2])},
        {"epoch": "another", "seq": 5},
        {"seq": 5, "digest": ResidentDigest(9)},
    ],
    ids=["skipped position", "another epoch", "load of a later position"],
)
def test_a_frame_that_does_not_follow_is_a_gap(changes):
    resident = ResidentSet("epoch", 4, hashes_of([1]))

    with pytest.raises(PositionGapError):
        resident.apply(frame_of(resident, **changes))

    assert (resident.seq, set(resident)) == (4, set(hashes_of([1])))


@pytest.mark.parametrize(
    "change",
    [
        {"stored": hashes_of([1])},
        {"removed": hashes_of([2])},
        {"stored": hashes_of([3, 3])},
        {"stored": [b"short"]},
        {"cleared": True, "removed": hashes_of([1])},
        {"stored": hashes_of([3]), "digest": ResidentDigest()},
    ],
    ids=["stored twice", "removed unheld", "named twice", "no hash", "cleared and removed", "wrong digest"],
)
def test_a_contradiction_is_refused_whole(change):
    resident = ResidentSet("epoch", 4, hashes_of([1]))
    before = (resident.seq, set(resident), resident.digest)

    with pytest.raises(SetMismatchError):
        resident.change(5, **change)

    assert (resident.seq, set(resident), resident.digest) == before


def test_a_load_frame_at_the_position_must_agree_with_the_set():
    resident = ResidentSet("epoch", 4, hashes_of([1]))

    with pytest.raises(SetMismatchError):
        resident.apply(frame_of(resident, digest=ResidentDigest()))


@pytest.mark.parametrize(
    ("blocks", "chunks"),
    [
        (0, 1),
        (1, 1),
        (SNAPSHOT_CHUNK_HASHES, 1),
        (SNAPSHOT_CHUNK_HASHES + 1, 2),
        (2 * SNAPSHOT_CHUNK_HASHES, 2),
    ],
)
def test_a_snapshot_rebuilds_the_set_at_its_position(blocks, chunks):
    resident = ResidentSet("epoch", 9, hashes_of(range(blocks)))
    load = LoadReport(total_blocks=5)

    frames = resident.snapshot(load)
    resident.change(10, cleared=True)
    rebuilt = assembled(frames)

    assert [frame.snapshot_left for frame in frames] == list(reversed(range(chunks)))
    assert [frame.load for frame in frames] == [None] * (chunks - 1) + [load]
    assert (rebuilt.epoch, rebuilt.seq, set(rebuilt)) == ("epoch", 9, set(hashes_of(range(blocks))))


def test_chunks_that_do_not_belong_together_never_make_a_set():
    digest = ResidentSet("epoch", 9, hashes_of(range(4))).digest
    frames = [
        Frame(epoch="epoch", seq=9, stored=hashes_of([n]), snapshot_left=3 - n, digest=digest)
        for n in range(4)
    ]
    complete = []
    for order in itertools.product(range(4), repeat=4):
        try:
            rebuilt = assembled([frames[n] for n in order])
        except ContractError:
            continue
        if rebuilt is not None:
            complete.append(order)

    assert complete == [(0, 1, 2, 3)]


def test_a_snapshot_may_not_outgrow_or_miss_what_it_announced():
    digest = ResidentSet("epoch", 9, hashes_of(range(2))).digest

    for stored in (hashes_of(range(3)), hashes_of([1, 2]), []):
        with pytest.raises(SetMismatchError):
            assembled([Frame(epoch="epoch", seq=9, stored=stored, snapshot_left=0, digest=digest)])


@settings(max_examples=100)
@given(
    held=st.sets(st.integers(0, 9)),
    steps=st.lists(st.one_of(st.integers(0, 9), st.just("clear")), max_size=30),
)
def test_coalesced_changes_lead_to_the_same_set(held, steps):
    resident = ResidentSet("epoch", 0, hashes_of(held))
    model, buffer = set(held), ChangeBuffer()
    for step in steps:
        if step == "clear":
            model.clear()
            buffer.clear()
        elif step in model:
            model.remove(step)
            buffer.remove(hash_of(step))
        else:
            model.add(step)
            buffer.store(hash_of(step))
    sent_something = bool(buffer)

    cleared, stored, removed = buffer.take()
    resident.change(1, cleared=cleared, stored=stored, removed=removed)

    assert set(resident) == set(hashes_of(model))
    assert sent_something == bool(cleared or stored or removed)
    assert not buffer


@settings(max_examples=60)
@given(st.sets(st.binary(min_size=16, max_size=16)), st.randoms(use_true_random=False))
def test_a_digest_depends_on_the_set_and_not_on_its_history(hashes, shuffler):
    listed = sorted(hashes)
    shuffler.shuffle(listed)
    resident = ResidentSet("epoch")
    for seq, block_hash in enumerate(listed, start=1):
        resident.change(seq, stored=[block_hash])
    full = resident.digest
    resident.change(len(listed) + 1, removed=sorted(hashes))

    assert full == digest_of(hashes)
    assert resident.digest == ResidentDigest()
