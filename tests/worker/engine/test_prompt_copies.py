"""Sequences of one message share their prompt: the engine hashes, checks and matches it once for all."""

import socket
from collections import Counter
from itertools import chain

import msgspec
import pytest

from warmfleet_contracts.errors import ContractError
from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_testing.engine.fake_runner import EngineDriver, naive_output
from warmfleet_worker.engine import scheduler
from warmfleet_worker.engine.messages import (
    AddSequences,
    NewSequence,
    decode_server_message,
    encode_message,
    packed_tokens,
)
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.token_counts import TokenCounts
from warmfleet_worker.engine_process import STEP_RECEIVE_BYTES, ServerChannel
from warmfleet_worker.kv_cache import prefix_cache
from warmfleet_worker.kv_cache.block_pool import BlockPool

SAMPLING = SamplingParameters(temperature=0.0, max_output_tokens=5)


def copies_of(prompt, count, sampling=SAMPLING):
    new = [NewSequence(number, seed=1000 + number) for number in range(count)]
    return AddSequences(sequences=new, prompt=packed_tokens(prompt), sampling=sampling)


@pytest.fixture
def hashed_tokens(monkeypatch):
    counts = []
    block_hashes = prefix_cache.block_hashes

    def counted(parent, token_ids, block_size_tokens):
        counts.append(len(token_ids))
        return block_hashes(parent, token_ids, block_size_tokens)

    monkeypatch.setattr(prefix_cache, "block_hashes", counted)
    return counts


def test_512_copies_of_a_prompt_are_hashed_once_and_share_its_tokens(hashed_tokens):
    driver = EngineDriver(total_blocks=2000, max_model_length_tokens=8192)
    prompt = [index % 499 for index in range(4000)]

    driver.engine.add(copies_of(prompt, 512))

    waiting = driver.engine._scheduler.waiting
    assert len(waiting) == 512
    assert hashed_tokens == [4000]
    assert len({id(sequence.token_ids._prompt) for sequence in waiting}) == 1
    assert len({id(sequence.block_hashes) for sequence in waiting}) == 1
    assert [sequence.sampling.seed for sequence in waiting] == list(range(1000, 1512))


def test_a_cached_prompt_is_looked_up_once_for_all_its_copies(monkeypatch):
    driver = EngineDriver(total_blocks=400, max_model_length_tokens=2048)
    prompt = [index % 499 for index in range(1000)]
    driver.add(10_000, prompt)
    driver.run()
    lookups = Counter()
    find = BlockPool.find

    def counted(pool, block_hash):
        lookups["find"] += 1
        return find(pool, block_hash)

    monkeypatch.setattr(BlockPool, "find", counted)
    driver.engine.add(copies_of(prompt, 512))

    blocks = len(driver.engine._scheduler.waiting[0].block_hashes)
    assert lookups["find"] <= blocks + 2 * 512


def test_each_copy_is_answered_exactly_and_grows_for_itself():
    driver = EngineDriver(max_batched_tokens=100)
    prompt = list(range(40))
    driver.engine.add(copies_of(prompt, 6))

    outputs = {number: [] for number in range(6)}
    while driver.engine.has_work:
        for update in driver.engine.step().updates:
            assert not update.error
            outputs[update.sequence_id] += update.token_ids

    expected, _ = naive_output(prompt, SAMPLING, driver.engine.max_model_length_tokens)
    assert list(outputs.values()) == [expected] * 6


def test_a_copy_that_grows_has_hashes_of_its_own():
    driver = EngineDriver()
    driver.engine.add(copies_of([1, 2, 3, 4, 5], 2))
    first, second = driver.engine._scheduler.waiting

    first.own_block_hashes().append(b"of the first")
    first.own_block_hashes().append(b"of the first, too")

    assert len(first.block_hashes) == 3
    assert len(second.block_hashes) == 1


def test_copies_of_a_cached_prompt_start_a_bounded_number_of_blocks_per_step(monkeypatch):
    # given 6 copies of a prompt of which 9 blocks are cached, and at most 20 of them per step
    monkeypatch.setattr(scheduler, "MAX_ADOPTED_BLOCKS", 20)
    driver = EngineDriver(max_batched_tokens=100)
    prompt = list(range(40))
    driver.add(100, prompt)
    driver.run()
    for number in range(6):
        driver.add(number, prompt)

    # when they are served
    running = []
    while driver.engine.has_work:
        running.append(driver.step().load.running_sequences)

    # then two start with each step, and all answers are exact
    assert running[:3] == [2, 4, 6]
    driver.assert_exact(*range(6))


def test_a_prompt_with_more_cached_blocks_than_a_step_starts_is_served(monkeypatch):
    monkeypatch.setattr(scheduler, "MAX_ADOPTED_BLOCKS", 3)
    driver = EngineDriver(max_batched_tokens=100)
    for number in range(3):
        driver.add(number, list(range(40)))

    driver.run()

    driver.assert_exact(*range(3))


def test_aborting_copies_that_wait_looks_at_none_of_their_blocks(monkeypatch):
    driver = EngineDriver(max_running_sequences=1)
    driver.engine.add(copies_of([1] * 100, 64))
    driver.engine.step()
    looked_at = []
    stop_leading = prefix_cache.PrefixCache.stop_leading

    def counted(cache, sequence_id, hashes):
        looked_at.append(len(hashes))
        stop_leading(cache, sequence_id, hashes)

    monkeypatch.setattr(prefix_cache.PrefixCache, "stop_leading", counted)
    for number in range(64):
        driver.engine.abort(number)

    assert not driver.engine._scheduler.has_work
    assert driver.engine._cache.led_blocks == 0
    assert sum(looked_at) <= 25


def test_copies_share_the_distinct_tokens_of_their_prompt_until_one_adds_to_them():
    first = TokenCounts([3, 4, 3])
    second = first.copy()
    third = second.copy()
    assert first.seen is second.seen is third.seen

    second.add(4)
    assert first.seen is second.seen
    second.add(9)

    assert (sorted(first.seen), sorted(second.seen)) == ([3, 4], [3, 4, 9])
    assert first.seen is third.seen


def test_copies_count_their_own_tokens_for_penalties():
    first = TokenCounts([3, 4, 3])
    second = first.copy()
    first.add(3)
    first.add(9)
    second.add(4)

    assert (sorted(first.seen), list(first.generated), list(first.times)) == ([3, 4, 9], [3, 9], [1, 1])
    assert (sorted(second.seen), list(second.generated), list(second.times)) == ([3, 4], [4], [1])


def test_a_refused_prompt_is_refused_for_each_of_its_sequences():
    driver = EngineDriver(max_model_length_tokens=64)
    driver.engine.add(copies_of([1] * 100, 3))

    updates = driver.engine.step().updates

    assert [update.sequence_id for update in updates] == [0, 1, 2]
    assert all("context length" in update.error for update in updates)


def test_copies_beyond_the_queue_are_refused_and_the_others_are_served():
    driver = EngineDriver(max_waiting_sequences=4)
    driver.engine.add(copies_of([1, 2, 3], 6))

    updates = driver.engine.step().updates

    refused = [update.sequence_id for update in updates if "waiting already" in update.error]
    assert refused == [4, 5]


def test_a_prompt_of_broken_tokens_is_a_protocol_error():
    fields = msgspec.to_builtins(add_sequence(1, [1], SAMPLING), builtin_types=[bytes])
    body = msgspec.msgpack.encode(fields | {"prompt": b"12345"})

    with pytest.raises(ContractError, match="5 bytes"):
        decode_server_message(body)


def test_between_two_steps_the_engine_takes_a_bounded_part_of_what_has_arrived():
    ours, theirs = socket.socketpair()
    body = encode_message(copies_of([7] * 4096, 1))
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * STEP_RECEIVE_BYTES)
        ours.setblocking(False)
        sent = 0
        channel = ServerChannel(theirs)
        taken = []
        whole = body * (3 * STEP_RECEIVE_BYTES // len(body))
        while sent < len(whole) or sum(map(len, taken)) < len(whole) // len(body):
            while sent < len(whole):
                try:
                    sent += ours.send(whole[sent:])
                except BlockingIOError:
                    break
            taken.append(channel.receive(0))

    assert len(list(chain(*taken))) == len(whole) // len(body)
    assert max(map(len, taken)) <= 2 * STEP_RECEIVE_BYTES // len(body)


@pytest.mark.parametrize("token_id", [-1, 2**32, 2**40])
def test_a_token_id_that_is_no_u32_is_never_sent(token_id):
    with pytest.raises(OverflowError):
        packed_tokens([5, token_id])
