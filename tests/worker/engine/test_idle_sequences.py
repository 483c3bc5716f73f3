"""Sequences that no client waits for: prefixes that are computed ahead of requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_testing.engine.fake_runner import EngineDriver
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.step_time import StepShape, StepTimeEstimator

AUTO = 0
"""The engine chooses how many tokens a step has."""


def prompt_of(tokens, first=0):
    return [(first + index) % 500 for index in range(tokens)]


def chunk_lengths(driver):
    return {chunk.sequence_id: len(chunk.token_ids) for chunk in driver.runner.batches[-1].chunks}


def test_an_idle_engine_computes_an_idle_prefix_and_caches_it():
    driver = EngineDriver(max_batched_tokens=16)
    driver.add(1, prompt_of(40), max_output_tokens=0, is_idle=True)
    driver.run()
    driver.add(2, prompt_of(40))
    driver.run()

    assert driver.outputs[1] == []
    assert driver.finish_reasons[1] == "length"
    assert driver.cached_tokens[2] == 36  # all but the block of the last token
    driver.assert_exact(2)


def test_an_idle_sequence_is_no_load():
    driver = EngineDriver(max_batched_tokens=16)
    driver.add(1, prompt_of(40), max_output_tokens=0, is_idle=True)
    driver.add(2, prompt_of(40, first=200), max_output_tokens=0, is_idle=True)
    of_router = {"is_idle": True, "router_id": "a", "dispatch": 1}
    driver.engine.add(add_sequence(3, prompt_of(40, first=300), SamplingParameters(), **of_router))
    waiting = driver.engine.report().load

    load = driver.step().load

    assert (load.running_sequences, load.waiting_sequences) == (0, 0)
    assert (waiting.open_dispatches, load.open_dispatches) == ({}, {})
    assert (load.queued_uncached_tokens, load.context_tokens) == (0, 0)


def test_an_idle_sequence_gives_its_seat_and_blocks_to_the_first_request():
    driver = EngineDriver(max_batched_tokens=16, max_running_sequences=1, total_blocks=16)
    driver.add(1, prompt_of(56), max_output_tokens=0, is_idle=True)
    driver.step()
    driver.add(2, prompt_of(16, first=200), max_output_tokens=20)
    driver.step()

    assert chunk_lengths(driver) == {2: 16}
    driver.run()
    assert list(driver.finish_reasons) == [2, 1]
    assert driver.preempted_sequences == 0
    driver.assert_exact(2)


def test_what_an_idle_sequence_has_computed_is_used_by_the_request_that_interrupts_it():
    driver = EngineDriver(max_batched_tokens=16)
    driver.add(1, prompt_of(64), max_output_tokens=0, is_idle=True)
    driver.step()
    driver.step()
    driver.add(2, prompt_of(64))
    driver.run()

    assert driver.cached_tokens[2] == 32
    driver.assert_exact(2)


def test_without_measured_times_an_idle_sequence_shares_no_step():
    driver = EngineDriver(max_batched_tokens=16)
    driver.add(1, prompt_of(4), max_output_tokens=6)
    driver.step()
    driver.add(2, prompt_of(40, first=200), max_output_tokens=0, is_idle=True)
    while 1 not in driver.finish_reasons:
        driver.step()
        assert 2 not in chunk_lengths(driver)
    driver.run()

    assert driver.finish_reasons[2] == "length"


@pytest.mark.parametrize("flat_tokens", [0, 40])
@pytest.mark.parametrize("is_handed_over", [False, True])
def test_an_idle_sequence_makes_steps_of_others_at_most_a_tenth_longer(flat_tokens, is_handed_over):
    driver = EngineDriver(max_batched_tokens=AUTO, total_blocks=512, max_model_length_tokens=1200)
    driver.runner.flat_tokens = flat_tokens
    if is_handed_over:  # into a cache that is full
        driver.add(8, prompt_of(1198, first=50), max_output_tokens=1)
        driver.run()
    for sequence_id in range(4):
        driver.add(sequence_id, prompt_of(30, first=100 * sequence_id), max_output_tokens=200)
    for _ in range(60):
        driver.step()
    alone = driver.step().step_seconds
    unused_seconds = 0.0 if is_handed_over else None
    driver.add(9, prompt_of(400, first=450), max_output_tokens=0, is_idle=True, unused_seconds=unused_seconds)

    seconds = [driver.step().step_seconds for _ in range(30)]

    assert max(seconds) <= 1.1 * alone + 1e-9
    if flat_tokens:  # a step that is bound by memory takes some tokens more in no more time
        idle = driver.engine._scheduler._sequences.get(9)
        assert idle is None or idle.computed_tokens > 0
    driver.run()
    assert driver.finish_reasons[9] == "length"
    assert bool(driver.evicted_blocks) is is_handed_over


@given(
    tokens=st.integers(1, 600),
    decodes=st.integers(0, 32),
    slope=st.floats(1e-6, 1e-3),
    base=st.floats(1e-3, 5e-2),
)
def test_an_idle_prefill_beside_a_step_stays_within_a_tenth_of_its_prediction(tokens, decodes, slope, base):
    estimator = StepTimeEstimator()
    for size in (1, 8, 32, 64, 128, 256):
        estimator.observe(StepShape(size, 0, size), base + slope * size)
    planned = StepShape.of_decodes([100] * decodes)

    idle = estimator.idle_tokens(planned, 0, tokens)

    assert 0 <= idle <= tokens
    if decodes and idle:
        limit = 1.1 * estimator.predict_seconds(planned)
        assert estimator.predict_seconds(planned.with_prefill(0, idle)) <= limit


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans(), st.integers(0, 8)), min_size=1, max_size=12))
def test_requests_among_idle_sequences_get_the_tokens_of_a_quiet_engine(asked):
    driver = EngineDriver(max_batched_tokens=16, total_blocks=20, max_running_sequences=3)
    requests = []
    for sequence_id, (tokens, is_idle, steps) in enumerate(asked):
        output = 0 if is_idle else 5
        driver.add(sequence_id, prompt_of(tokens), max_output_tokens=output, is_idle=is_idle)
        requests += [] if is_idle else [sequence_id]
        for _ in range(steps if driver.engine.has_work else 0):
            driver.step()
    driver.run()

    assert set(driver.finish_reasons) == set(range(len(asked)))
    driver.assert_exact(*requests)


# What idle sequences may not take from requests.


def test_blocks_of_idle_sequences_are_no_load():
    driver = EngineDriver(max_batched_tokens=16)
    driver.add(1, prompt_of(200), max_output_tokens=0, is_idle=True)

    assert driver.step().load.pinned_blocks == 0

    driver.add(2, prompt_of(20, first=300), max_output_tokens=8)
    assert driver.step().load.pinned_blocks == 5


def test_an_idle_sequence_evicts_nothing():
    driver = EngineDriver(max_batched_tokens=16)
    driver.add(1, prompt_of(100), max_output_tokens=1)
    driver.add(2, prompt_of(100, first=200), max_output_tokens=1)
    driver.run()
    driver.add(3, prompt_of(100, first=350), max_output_tokens=0, is_idle=True)
    driver.run()

    assert (driver.finish_reasons[3], driver.evicted_blocks) == ("error", 0)


def test_of_more_prefixes_than_fit_the_first_ones_stay():
    driver = EngineDriver(max_batched_tokens=16)
    for sequence_id in range(8):
        driver.add(sequence_id, prompt_of(60, first=60 * sequence_id), max_output_tokens=0, is_idle=True)
    driver.run()

    assert list(driver.finish_reasons.values()).count("length") == 4
    driver.add(9, prompt_of(60), max_output_tokens=1)
    driver.run()
    assert driver.cached_tokens[9] == 56


def test_idle_sequences_take_no_place_in_the_queue():
    driver = EngineDriver(max_batched_tokens=16, max_waiting_sequences=1)
    driver.add(1, prompt_of(40), max_output_tokens=0, is_idle=True)
    driver.add(2, prompt_of(40, first=100), max_output_tokens=0, is_idle=True)
    driver.add(3, prompt_of(40, first=200))
    driver.run()

    assert driver.finish_reasons == {1: "length", 2: "busy", 3: "length"}


@pytest.mark.parametrize("settings", [{"prefix_caching": False}, {"window_tokens": 64}])
def test_an_engine_that_caches_nothing_computes_nothing_ahead(settings):
    driver = EngineDriver(**settings)
    driver.add(1, prompt_of(40), max_output_tokens=0, is_idle=True)
    driver.run()

    assert (driver.finish_reasons[1], driver.runner.counters.steps) == ("busy", 0)


# What is handed over may take the place of what was not used for longer.


def full_of(driver, *first_tokens):
    """Cached prompts of 100 tokens, the oldest first; together they fill the cache."""
    for number, first in enumerate(first_tokens):
        driver.add(number, prompt_of(100, first=first), max_output_tokens=1)
        driver.run()


@pytest.mark.parametrize(("unused_seconds", "reason"), [(0.0, "length"), (1000.0, "error"), (None, "error")])
def test_a_prefix_takes_the_place_of_what_was_not_used_for_longer_alone(unused_seconds, reason):
    driver = EngineDriver(max_batched_tokens=16)
    full_of(driver, 0, 200)
    driver.add(3, prompt_of(60, first=350), max_output_tokens=0, is_idle=True, unused_seconds=unused_seconds)
    driver.run()

    assert driver.finish_reasons[3] == reason
    assert bool(driver.evicted_blocks) is (reason == "length")


def test_a_prefix_evicts_the_least_recently_used_and_keeps_its_own_beginning():
    driver = EngineDriver(max_batched_tokens=16)
    full_of(driver, 0, 200)
    longer = [*prompt_of(96), *prompt_of(64, first=400)]  # its beginning is the oldest in the cache
    driver.add(3, longer, max_output_tokens=0, is_idle=True, unused_seconds=0.0)
    driver.run()
    driver.add(4, [*longer, 7], max_output_tokens=1)
    driver.run()

    assert driver.finish_reasons[3] == "length"
    assert driver.cached_tokens == {**driver.cached_tokens, 3: 96, 4: 160}
