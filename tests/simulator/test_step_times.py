"""Step times are whole picoseconds, and the prefill of a step is what fits into the worker's target time."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.kv_events import StepTimeFit
from warmfleet_simulator.step_times import PICOSECONDS, ModelledBudget, StepTimes
from warmfleet_worker.engine.step_time import (
    MAX_AUTO_BATCHED_TOKENS,
    MIN_AUTO_BATCHED_TOKENS,
    StepShape,
)

COEFFICIENTS = st.integers(0, 10**9)
TIMES = st.builds(
    StepTimes,
    base_ps=st.integers(1, 10**11),
    prefill_token_ps=COEFFICIENTS,
    decode_ps=COEFFICIENTS,
    context_token_ps=st.integers(0, 10**6),
    knee_tokens=st.integers(0, 500),
)
POSITIONS = st.lists(st.integers(0, 5000), max_size=20)


@given(times=TIMES, positions=POSITIONS, steps=st.integers(1, 60))
def test_the_time_of_a_stretch_is_the_sum_of_its_steps(
    times: StepTimes, positions: list[int], steps: int
) -> None:
    one_by_one = sum(
        times.step_ps(StepShape.of_decodes([position + step for position in positions]))
        for step in range(steps)
    )

    assert times.decodes_ps(StepShape.of_decodes(positions), steps) == one_by_one


@given(
    times=TIMES,
    target=st.integers(10, 200),
    positions=POSITIONS,
    earlier=st.integers(0, 40),
    first=st.integers(0, 5000),
    wanted=st.integers(1, 4000),
)
def test_a_step_takes_the_prefill_that_fits_and_no_token_more(
    times: StepTimes, target: int, positions: list[int], earlier: int, first: int, wanted: int
) -> None:
    decodes = StepShape.of_decodes(positions)
    planned = decodes.with_prefill(0, earlier)

    tokens = ModelledBudget(times, target).prefill_tokens(planned, first, wanted)

    limit = longest = max(target, 100)
    if positions:  # slow decodes may take a tenth longer than alone, but for the contexts of prefills
        decodes_ps = times.step_ps(decodes) + times.context_token_ps * earlier
        limit = max(target, min(1100 * decodes_ps / PICOSECONDS, longest))

    def fits(count: int) -> bool:
        milliseconds = 1000 * times.step_ps(planned.with_prefill(first, count)) / PICOSECONDS
        return earlier + count <= MIN_AUTO_BATCHED_TOKENS or milliseconds <= limit + 1e-9

    most = min(wanted, MAX_AUTO_BATCHED_TOKENS - earlier)
    least = min(wanted, max(MIN_AUTO_BATCHED_TOKENS - earlier, 0))
    assert least <= tokens <= most
    assert fits(tokens) or tokens == least
    assert tokens == most or not fits(tokens + 1)


@given(times=TIMES, target=st.integers(10, 200), positions=POSITIONS, wanted=st.integers(1, 4000))
def test_a_prompt_that_no_client_waits_for_adds_a_tenth_to_a_step_at_most(
    times: StepTimes, target: int, positions: list[int], wanted: int
) -> None:
    planned = StepShape.of_decodes(positions)

    tokens = ModelledBudget(times, target).idle_tokens(planned, 0, wanted)

    alone = 1000 * times.step_ps(planned) / PICOSECONDS
    limit = min(1.1 * alone, max(target, 100)) + 1e-9
    assert 0 <= tokens <= wanted
    assert not tokens or 1000 * times.step_ps(planned.with_prefill(0, tokens)) / PICOSECONDS <= limit


def test_prefill_below_the_knee_takes_no_time_and_decodes_fill_it_first() -> None:
    times = StepTimes(base_ps=1000, prefill_token_ps=7, decode_ps=3, context_token_ps=0, knee_tokens=100)
    three = StepShape.of_decodes([0, 0, 0])

    assert times.step_ps(three) == times.step_ps(three.with_prefill(0, 97)) == 1009
    assert times.step_ps(three.with_prefill(0, 98)) == 1016


def test_routers_get_the_times_as_a_worker_that_has_learnt_them() -> None:
    fit = StepTimeFit(
        base_seconds=0.02,
        per_prefill_token_seconds=1e-5,
        per_decode_sequence_seconds=2e-5,
        per_context_token_seconds=1e-8,
        knee_tokens=300,
        samples=12,
    )

    assert StepTimes.of(fit).fit() == msgspec.structs.replace(fit, samples=1000)
