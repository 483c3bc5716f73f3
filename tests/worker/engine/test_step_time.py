"""The online fit of step seconds and the token budget that follows from it."""

import math
import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_worker.engine.batch import Chunk, SampleRequest, StepBatch
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.step_plan import FixedBudget
from warmfleet_worker.engine.step_time import (
    GROWTH,
    MAX_AUTO_BATCHED_TOKENS,
    MIN_AUTO_BATCHED_TOKENS,
    START_AUTO_BATCHED_TOKENS,
    TARGET_STEP_SECONDS,
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

    assert StepShape.of(batch) == StepShape(
        prefill_tokens=5,
        decode_sequences=1,
        context_tokens=41 + 11 + 2,
        attention_pairs=(9 + 10 + 11) + (1 + 2),
    )


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
    [(1e-6, MAX_AUTO_BATCHED_TOKENS), (1e-3, 90), (0.5, MIN_AUTO_BATCHED_TOKENS)],
)
def test_the_auto_budget_is_what_a_step_of_a_tenth_of_a_second_computes_within_bounds(
    seconds_per_token, tokens
):
    estimator = StepTimeEstimator()
    assert estimator.auto_batched_tokens() == START_AUTO_BATCHED_TOKENS

    learn(estimator, lambda shape: machine(shape, prefill=seconds_per_token))
    for _ in range(20):  # steps as large as it allows
        shape = StepShape(estimator.auto_batched_tokens(), 0, 0)
        estimator.observe(shape, machine(shape, prefill=seconds_per_token))

    assert estimator.auto_batched_tokens() == pytest.approx(tokens, rel=0.03)


# Steps that are flat up to a knee.


@dataclass(frozen=True)
class KneeMachine:
    """Steps take `flat` seconds up to `knee` tokens, and `flat / knee` more for each token above it."""

    flat: float
    knee: int
    pair: float = 0.0
    noise: float = 0.0
    hiccups: float = 0.0
    """Share of steps that take ten times as long."""

    def seconds(self, shape):
        line = self.flat * max(shape.tokens / self.knee, 1)
        return line + 1e-7 * shape.context_tokens + self.pair * shape.attention_pairs

    def measured(self, shape, source):
        hiccup = 10 if source.random() < self.hiccups else 1
        return self.seconds(shape) * source.uniform(1 - self.noise, 1 + self.noise) * hiccup


def chat(estimator, machine, streams, source, steps=400):
    """Decodes of running streams; every tenth step has a prompt of which all but a few tokens are cached."""
    for step in range(steps):
        shape = StepShape(0, streams, streams * (500 + step))
        if step % 10 == 0:
            shape = shape.with_prefill(source.randint(0, 2000), source.randint(1, 20))
        estimator.observe(shape, machine.measured(shape, source))


def prefill(estimator, machine, streams, source, tokens=4000):
    """The steps of a prompt of which nothing is cached, beside running streams."""
    shapes = []
    position = 0
    while position < tokens:
        decodes = StepShape(0, streams, 900 * streams)
        chunk = estimator.prefill_tokens(decodes, position, tokens - position)
        assert 0 < chunk <= tokens - position
        shape = decodes.with_prefill(position, chunk)
        estimator.observe(shape, machine.measured(shape, source))
        position += chunk
        shapes.append(shape)
    return shapes


MACHINES = [
    KneeMachine(flat=0.042, knee=40),
    KneeMachine(flat=0.010, knee=200),
    KneeMachine(flat=0.010, knee=500, pair=3e-8),
    KneeMachine(flat=0.060, knee=60, pair=3e-7),
    KneeMachine(flat=0.001, knee=1, pair=4e-7),
]


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("streams", [1, 8])
def test_after_cached_chat_no_step_of_a_cold_prompt_takes_longer_than_is_meant(machine, streams):
    source = random.Random(3)
    estimator = StepTimeEstimator()
    chat(estimator, machine, streams, source)

    shapes = prefill(estimator, machine, streams, source)

    seconds = [machine.seconds(shape) for shape in shapes]
    assert max(seconds) <= 1.1 * TARGET_STEP_SECONDS
    # Nor are they much shorter, but for the first, which grow, and the last.
    assert min(seconds[8:-1], default=TARGET_STEP_SECONDS) >= 0.75 * TARGET_STEP_SECONDS


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("streams", [1, 8])
@pytest.mark.parametrize("target_seconds", [0.09, 0.05])
def test_beside_streams_no_step_takes_longer_than_its_target_or_a_tenth_more_than_decodes_alone(
    machine, streams, target_seconds
):
    source = random.Random(3)
    estimator = StepTimeEstimator(target_seconds)
    chat(estimator, machine, streams, source)

    shapes = prefill(estimator, machine, streams, source)

    decodes, position = StepShape(0, streams, 900 * streams), 0
    for shape in shapes:
        alone = machine.seconds(decodes)
        least = machine.seconds(decodes.with_prefill(position, MIN_AUTO_BATCHED_TOKENS))
        assert machine.seconds(shape) <= 1.12 * max(target_seconds, alone, least)
        position += shape.prefill_tokens


@pytest.mark.parametrize("decodes", [0, 1, 8])
def test_a_target_below_what_every_step_takes_leaves_prompts_what_costs_nothing(decodes):
    """On a machine whose steps take 60 ms up to 128 tokens."""
    machine = KneeMachine(flat=0.060, knee=128)
    estimator = StepTimeEstimator(0.010)
    source = random.Random(3)
    for _ in range(200):
        shape = StepShape(source.randint(0, 300), source.randint(0, 8), source.randint(100, 5000))
        estimator.observe(shape, machine.seconds(shape))

    planned = StepShape.of_decodes([8] * decodes)
    tokens = estimator.prefill_tokens(planned, 0, 4000)
    after_a_short_one = estimator.prefill_tokens(planned.with_prefill(0, 10), 0, 4000)
    idle = estimator.idle_tokens(planned, 0, 4000)

    assert tokens >= 128 - decodes
    assert after_a_short_one >= tokens - 12
    assert idle >= 128 - decodes
    assert decodes == 0 or machine.seconds(StepShape(tokens, decodes, tokens)) <= 1.11 * 0.060


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_noise_and_hiccups_lengthen_the_steps_of_a_cold_prompt_by_60_percent_at_most(machine, seed):
    machine = replace(machine, noise=0.1, hiccups=0.02)
    source = random.Random(seed)
    estimator = StepTimeEstimator()
    for _ in range(2):
        chat(estimator, machine, 4, source)

        shapes = prefill(estimator, machine, 4, source)

        assert max(map(machine.seconds, shapes)) <= 1.6 * TARGET_STEP_SECONDS


@pytest.mark.parametrize("slow_steps", [1, 32])
@pytest.mark.parametrize("seconds", [3.0, 60.0, 600.0])
def test_a_slow_start_does_not_leave_small_steps_for_ever(seconds, slow_steps):
    """A step that is never computed again cannot correct what was learned from it."""
    machine = KneeMachine(flat=0.020, knee=200)
    estimator = StepTimeEstimator()
    for _ in range(slow_steps):
        tokens = estimator.prefill_tokens(StepShape(0, 8, 8000), 0, 4000)
        estimator.observe(StepShape(0, 8, 8000).with_prefill(0, tokens), seconds)

    source = random.Random(0)
    for _ in range(20):
        prefill(estimator, machine, 8, source)

    assert estimator.auto_batched_tokens() == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize("knee", [40, 100, 300])
def test_routers_receive_base_slope_and_knee(knee):
    machine = KneeMachine(flat=0.030, knee=knee)
    source = random.Random(0)
    estimator = StepTimeEstimator()
    chat(estimator, machine, 2, source)
    prefill(estimator, machine, 2, source)

    fit = estimator.fit()

    budget = estimator.auto_batched_tokens()
    above_knee = fit.per_prefill_token_seconds * (budget - fit.knee_tokens)
    assert fit.base_seconds == pytest.approx(0.030, rel=0.1)
    assert fit.per_prefill_token_seconds == pytest.approx(0.030 / knee, rel=0.2)
    assert fit.base_seconds + above_knee == pytest.approx(TARGET_STEP_SECONDS, rel=0.05)


def test_until_tokens_lengthen_a_step_routers_receive_its_time_as_their_price():
    estimator = StepTimeEstimator()
    chat(estimator, KneeMachine(flat=0.030, knee=200), 1, random.Random(0))

    fit = estimator.fit()

    assert fit.base_seconds == pytest.approx(0.030, rel=0.05)
    assert 10 <= fit.knee_tokens <= 21
    assert fit.per_prefill_token_seconds * fit.knee_tokens == pytest.approx(0.030, rel=0.1)


def test_a_step_has_at_most_twice_the_tokens_of_the_largest_one_measured():
    estimator = StepTimeEstimator()
    source = random.Random(0)
    machine = KneeMachine(flat=0.001, knee=2000)
    chat(estimator, machine, 3, source)

    shapes = prefill(estimator, machine, 3, source)

    tokens = [shape.tokens for shape in shapes[:-1]]
    assert tokens[0] <= GROWTH * (3 + 20)
    assert all(later <= GROWTH * earlier for earlier, later in pairwise(tokens))
    assert max(tokens) >= 1000


@pytest.mark.parametrize(
    ("seconds_per_token", "longest", "most_tokens"),
    [(0.450, 58.0, 128), (0.010, 10.0, 1000), (0.0001, 0.9, 8192)],
)
def test_a_users_own_number_of_tokens_makes_no_step_that_looks_like_a_hang(
    seconds_per_token, longest, most_tokens
):
    """An engine reports nothing within a step; after a minute it is not ready, after two it is ended.

    Only the first step is one of which nothing is known.
    """
    estimator = StepTimeEstimator()
    budget = FixedBudget(8192, estimator)
    position, steps = 0, []
    while position < 40_000:
        tokens = budget.prefill_tokens(StepShape(0, 0, 0), position, 40_000 - position)
        shape = StepShape(0, 0, 0).with_prefill(position, tokens)
        steps.append((tokens, tokens * seconds_per_token))
        estimator.observe(shape, steps[-1][1])
        position += tokens

    assert max(seconds for _, seconds in steps) <= 1.01 * longest
    assert max(tokens for tokens, _ in steps) == pytest.approx(most_tokens, rel=0.02)


def test_small_steps_however_many_do_not_replace_what_large_ones_taught():
    estimator = StepTimeEstimator()
    source = random.Random(0)
    machine = KneeMachine(flat=0.020, knee=100)
    shapes = prefill(estimator, machine, 2, source)
    assert estimator.auto_batched_tokens() == pytest.approx(500, rel=0.05)

    chat(estimator, machine, 2, source, steps=3000)

    assert estimator.auto_batched_tokens() == pytest.approx(500, rel=0.05)
    assert max(map(machine.seconds, shapes)) <= 1.1 * TARGET_STEP_SECONDS


def test_decodes_and_context_count_inside_the_budget():
    estimator = StepTimeEstimator()
    learn(estimator, lambda shape: machine(shape, context=2e-6))

    alone = estimator.prefill_tokens(StepShape(0, 0, 0), 0, 4000)
    beside_decodes = estimator.prefill_tokens(StepShape(0, 10, 0), 0, 4000)
    beside_context = estimator.prefill_tokens(StepShape(0, 10, 10_000), 0, 4000)
    beside_all = estimator.prefill_tokens(StepShape(0, 32, 20_000), 0, 4000)

    assert alone == pytest.approx((0.1 - 0.010) / 0.0005, rel=0.05)
    assert beside_decodes == pytest.approx((0.1 - 0.040) / 0.0005, rel=0.05)
    assert beside_context == pytest.approx((0.1 - 0.060) / 0.0005, rel=0.05)
    assert beside_all == MIN_AUTO_BATCHED_TOKENS


def test_what_follows_a_long_context_gets_fewer_tokens():
    estimator = StepTimeEstimator()
    machine = KneeMachine(flat=0.020, knee=100, pair=1e-7)
    prefill(estimator, machine, 0, random.Random(0), tokens=8000)

    tokens = [estimator.prefill_tokens(StepShape(0, 0, 0), position, 4000) for position in (0, 4000, 8000)]

    seconds = [
        machine.seconds(StepShape(0, 0, 0).with_prefill(position, count))
        for position, count in zip((0, 4000, 8000), tokens, strict=True)
    ]
    assert tokens == sorted(tokens, reverse=True)
    # The new prompt gets at most twice what the last steps had, so that its step is shorter.
    assert max(seconds) <= 1.1 * TARGET_STEP_SECONDS
    assert seconds[1:] == pytest.approx([TARGET_STEP_SECONDS] * 2, rel=0.1)


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
