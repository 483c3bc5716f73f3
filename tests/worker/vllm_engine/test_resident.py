"""vLLM's cache events become changes of warmfleet's blocks: a log of vLLM's own, and what does not fit."""

import json
from pathlib import Path

import msgspec
import pytest

from warmfleet_contracts.cache.blocks import CacheIdentity, block_hashes, block_root
from warmfleet_contracts.errors import ContractError
from warmfleet_worker.vllm_engine.announcements import Announcements
from warmfleet_worker.vllm_engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, decode_batch
from warmfleet_worker.vllm_engine.resident import (
    EventsLostError,
    ResidentBlocks,
    UnfitCacheError,
    salt_text,
)

IDENTITY = CacheIdentity(bytes(16))
SIZE = 32
RECORDED = [
    msgspec.msgpack.encode(batch)
    for batch in json.loads((Path(__file__).parent / "recorded_events.json").read_text())
]
"""As `tests/vllm/events.py` recorded them on a CPU: a salted prompt of 100 tokens, two equal ones of 70 at
once that generate 30 each, one of 40, a reset of the cache, and one of 900."""


def hashes(tokens, salt=b""):
    return block_hashes(block_root(IDENTITY, salt=salt), list(tokens), SIZE)


def resident(total_blocks=39):
    return ResidentBlocks(IDENTITY, SIZE, total_blocks)


def stored(numbers, parent=None, tokens=None, **fields):
    return BlockStored(
        block_hashes=numbers,
        parent_block_hash=parent,
        token_ids=list(range(SIZE * len(numbers))) if tokens is None else tokens,
        block_size=SIZE,
        medium="GPU",
        **fields,
    )


def removed(*numbers):
    return BlockRemoved(block_hashes=list(numbers), medium="GPU")


def test_a_log_of_vllm_gives_the_hashes_of_the_prompts_that_were_sent():
    blocks = resident()
    salted, pair, continued, single, cleared = RECORDED

    blocks.apply(decode_batch(salted))
    assert blocks.changes.take() == (False, hashes(range(100, 200), b"t1"), [])
    assert salt_text(b"t1") == "7431"

    blocks.apply(decode_batch(pair))
    assert blocks.changes.take() == (False, hashes(range(300, 370)), [])
    blocks.apply(decode_batch(continued))
    _, generated, _ = blocks.changes.take()
    assert (len(generated), blocks.copies) == (1, 7)  # both sequences have a copy of the third block

    blocks.apply(decode_batch(single))
    assert blocks.changes.take()[1] == hashes(range(100, 140))
    blocks.apply(decode_batch(cleared))
    assert blocks.changes.take() == (True, hashes([7] * 900), [])
    assert len(blocks) == blocks.copies == 28


def test_a_block_leaves_with_its_last_copy():
    blocks = resident()
    blocks.apply([stored([1, 2]), stored([1, 2])])
    assert (len(blocks), blocks.copies) == (2, 4)
    blocks.changes.take()

    blocks.apply([removed(1)])
    assert not blocks.changes
    blocks.apply([removed(1)])

    assert blocks.changes.take() == (False, [], hashes(range(SIZE)))
    assert blocks.evicted_blocks == 2
    assert blocks.matched_tokens(hashes(range(2 * SIZE))) == 0


def test_digests_of_either_form_name_blocks():
    blocks = resident()
    blocks.apply([stored([b"first"]), stored([2], parent=b"first")])
    assert len(blocks) == 2


def test_events_of_a_cache_that_is_being_cleared_are_of_blocks_that_are_gone():
    blocks = resident()
    blocks.apply([stored([1])])
    blocks.clear()
    blocks.apply([stored([2], parent=1), removed(1), removed(99)])
    assert len(blocks) == 0

    blocks.apply([AllBlocksCleared(), stored([5])])

    assert blocks.changes.take() == (True, hashes(range(SIZE)), [])


def test_other_media_are_no_cache_of_the_device():
    blocks = resident()
    blocks.apply(
        [BlockStored(block_hashes=[1], parent_block_hash=None, token_ids=[], block_size=SIZE, medium="CPU")]
    )
    blocks.apply([BlockRemoved(block_hashes=[1], medium="CPU")])
    assert not blocks.changes


@pytest.mark.parametrize(
    "events",
    [
        [stored([2], parent=1)],
        [removed(1)],
        [stored([1]), stored([1], tokens=[9] * SIZE)],
        [stored(list(range(40)))],
    ],
    ids=["unknown parent", "unknown block", "one hash, two blocks", "more than the pool"],
)
def test_events_that_do_not_follow_from_those_before_mean_that_some_are_lost(events):
    with pytest.raises(EventsLostError):
        resident().apply(events)


@pytest.mark.parametrize(
    "event",
    [
        stored([1], kv_cache_spec_kind="sliding_window"),
        stored([1], tokens=[1]),
        stored([1], extra_keys=[["not hex"]]),
        stored([1], extra_keys=[["7431", ["image", 0]]]),
    ],
)
def test_a_cache_that_routers_cannot_predict_is_refused(event):
    with pytest.raises(UnfitCacheError):
        resident().apply([event])


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode([1.0, [{"type": "New"}]])])
def test_other_messages_than_events_are_named(payload):
    with pytest.raises(ContractError, match="malformed cache events"):
        decode_batch(payload)


def test_without_asynchronous_scheduling_a_batch_is_of_computed_blocks():
    announcements = Announcements(steps_ahead=0)
    announcements.add([removed(1)])
    assert list(announcements.take(is_idle=False)) == [[removed(1)]]


def test_with_asynchronous_scheduling_a_batch_waits_for_the_step_that_computes_it():
    announcements = Announcements(steps_ahead=1)
    announcements.add([removed(1)])
    announcements.end_step()  # may be the one that sent the batch
    assert list(announcements.take(is_idle=False)) == []
    announcements.add([removed(2)])
    announcements.end_step()
    assert list(announcements.take(is_idle=False)) == [[removed(1)]]
    assert list(announcements.take(is_idle=True)) == [[removed(2)]]
