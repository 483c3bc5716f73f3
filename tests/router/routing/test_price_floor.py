"""The bound below a price against the price itself."""

from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_router.routing.cost import RatesSource, StepRates, Work, WorkerLoad, price_floor, request_cost

SECONDS = st.floats(0, 0.1)
COUNTS = st.integers(0, 300) | st.integers(0, 2**53)

loads = st.builds(
    WorkerLoad,
    running_sequences=COUNTS,
    waiting_sequences=COUNTS,
    max_running_sequences=COUNTS,
    queued_uncached_tokens=COUNTS,
    context_tokens=COUNTS,
    total_blocks=COUNTS,
    pinned_blocks=COUNTS,
)
rates = st.builds(
    StepRates,
    base_seconds=SECONDS,
    per_prefill_token_seconds=st.floats(1e-7, 0.01),
    per_decode_sequence_seconds=SECONDS,
    per_context_token_seconds=SECONDS,
    source=st.just(RatesSource.MEASURED),
    knee_tokens=st.integers(0, 500),
)
works = st.builds(
    Work,
    uncached_tokens=st.integers(0, 200_000),
    needed_blocks=st.integers(0, 20_000),
    sequences=st.integers(1, 64),
)


@settings(max_examples=500)
@given(load=loads, rate=rates, work=works, seat_seconds=st.floats(0, 100))
def test_no_request_costs_less_than_the_floor(
    load: WorkerLoad, rate: StepRates, work: Work, seat_seconds: float
) -> None:
    floor = price_floor(load, rate, seat_seconds=seat_seconds)

    cost = request_cost(work, load, rate, seat_seconds=seat_seconds)

    assert floor.at(work.uncached_tokens) <= cost.total_ms * (1 + 1e-9)


def test_the_floor_is_the_price_where_a_prompt_does_not_wait_and_nothing_fits_below_the_knee() -> None:
    load = WorkerLoad(running_sequences=3, max_running_sequences=8, queued_uncached_tokens=100)
    rate = StepRates(0.01, 0.0001, 0.001, 0.0, RatesSource.MEASURED)

    cost = request_cost(Work(uncached_tokens=500, needed_blocks=0), load, rate, seat_seconds=4.0)

    assert abs(price_floor(load, rate, seat_seconds=4.0).at(500) - cost.total_ms) < 1e-9
