"""The online fit of step seconds and the token budget that follows from it."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_worker.engine.batch import Chunk, SampleRequest, StepBatch
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.step_time import (
    MAX_AUTO_BATCHED_TOKENS,
    MIN_AUTO_BATCHED_TOKENS,
    START_AUTO_BATCHED_TOKENS,
    StepShape,
    StepTimeEstimator,
)


def machine(shape, *, base=0.010, prefill=0.0005, decode=0.003, context=2e-6):
    """Seconds of a step on a machine that follows the formula exactly."""
    return (
        base
        + prefill * shape.prefill_tokens
        + decode * shape.decode_sequences
        + context * shape.context_tokens
    )


def random_shape(source):
    return StepShape(
        prefill_tokens=source.choice([0, 0, 128, source.randint(1, 128)]),
        decode_sequences=source.randint(0, 32),
        context_tokens=source.randint(100, 20_000),
    )


def learn(estimator, seconds_of, steps=400, seed=0):
    source = random.Random(seed)
    for _ in range(steps):
        shape = random_shape(source)
        estimator.observe(shape, seconds_of(shape))


def test_a_chunk_that_asks_for_a_token_with_a_single_one_is_a_decode():
    sample = SampleRequest(SamplingParameters(), 3)
    batch = StepBatch(
        (
            Chunk(1, (5,), 40, (0, 1, 2), sample),
            Chunk(2, (5, 6, 7), 8, (3,), sample),
            Chunk(3, (5, 6), 0, (4,), None),
        )
    )

    assert StepShape.of(batch) == StepShape(prefill_tokens=5, decode_sequences=1, context_tokens=41 + 11 + 2)


def test_the_coefficients_of_an_exact_machine_are_found():
    estimator = StepTimeEstimator()

    learn(estimator, machine)

    fit = estimator.fit()
    assert fit.samples == 400
    assert fit.base_seconds == pytest.approx(0.010, rel=0.1)
    assert fit.per_prefill_token_seconds == pytest.approx(0.0005, rel=0.02)
    assert fit.per_decode_sequence_seconds == pytest.approx(0.003, rel=0.02)
    assert fit.per_context_token_seconds == pytest.approx(2e-6, rel=0.1)


def test_a_noisy_machine_with_hiccups_is_predicted_within_a_quarter():
    noise = random.Random(7)
    estimator = StepTimeEstimator()

    learn(
        estimator,
        lambda shape: machine(shape) * noise.uniform(0.9, 1.1) * (20 if noise.random() < 0.02 else 1),
        steps=1000,
    )

    source = random.Random(1)
    shapes = [random_shape(source) for _ in range(200)]
    errors = sorted(abs(estimator.predict_seconds(shape) / machine(shape) - 1) for shape in shapes)
    assert errors[100] < 0.25


def test_a_machine_that_became_slower_is_learned_anew():
    estimator = StepTimeEstimator()
    learn(estimator, machine)

    learn(estimator, lambda shape: 10 * machine(shape), steps=1500, seed=1)

    assert estimator.fit().per_prefill_token_seconds == pytest.approx(0.005, rel=0.1)


def test_prefills_of_one_size_only_give_the_rate_and_not_a_base():
    estimator = StepTimeEstimator()
    for _ in range(50):
        estimator.observe(StepShape(100, 0, 0), 0.200)

    assert estimator.fit().per_prefill_token_seconds == pytest.approx(0.002, rel=0.05)
    assert estimator.auto_batched_tokens() == pytest.approx(50, abs=3)


def test_what_prefill_costs_survives_a_long_time_of_decodes_only():
    estimator = StepTimeEstimator()
    learn(estimator, machine)

    source = random.Random(3)
    for _ in range(20_000):
        shape = StepShape(0, source.randint(1, 32), source.randint(100, 20_000))
        estimator.observe(shape, machine(shape))

    assert estimator.fit().per_prefill_token_seconds == pytest.approx(0.0005, rel=0.1)


@pytest.mark.parametrize(
    ("seconds_per_token", "tokens"),
    [(1e-6, MAX_AUTO_BATCHED_TOKENS), (1e-3, 100), (0.5, MIN_AUTO_BATCHED_TOKENS)],
)
def test_the_auto_budget_is_what_a_tenth_of_a_second_computes_within_bounds(seconds_per_token, tokens):
    estimator = StepTimeEstimator()
    assert estimator.auto_batched_tokens() == START_AUTO_BATCHED_TOKENS

    learn(estimator, lambda shape: machine(shape, prefill=seconds_per_token))

    assert estimator.auto_batched_tokens() == pytest.approx(tokens, rel=0.03)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_duration_teaches_nothing(seconds):
    estimator = StepTimeEstimator()

    estimator.observe(StepShape(10, 1, 100), seconds)

    assert estimator.fit().samples == 0


steps = st.tuples(
    st.builds(StepShape, st.integers(0, 4096), st.integers(0, 256), st.integers(0, 10**6)),
    st.floats(1e-6, 1e4),
)


@given(st.lists(steps, max_size=80))
def test_no_history_makes_a_coefficient_negative_or_endless(history):
    estimator = StepTimeEstimator()

    for shape, seconds in history:
        estimator.observe(shape, seconds)

    fit = estimator.fit()
    for coefficient in (
        fit.base_seconds,
        fit.per_prefill_token_seconds,
        fit.per_decode_sequence_seconds,
        fit.per_context_token_seconds,
    ):
        assert 0.0 <= coefficient <= 1e4
    assert MIN_AUTO_BATCHED_TOKENS <= estimator.auto_batched_tokens() <= MAX_AUTO_BATCHED_TOKENS
