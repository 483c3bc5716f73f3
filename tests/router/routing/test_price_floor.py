"""The bound below a price against the price itself."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmfleet_router.routing.cost import (
    RatesSource,
    StepRates,
    Work,
    WorkerLoad,
    price_floor,
    worker_prices,
)

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
    sequences=st.just(1) | st.integers(1, 64),
)


@settings(max_examples=500)
@given(load=loads, rate=rates, work=works, seat_seconds=st.floats(0, 100))
def test_no_request_costs_less_than_the_floor(
    load: WorkerLoad, rate: StepRates, work: Work, seat_seconds: float
) -> None:
    floor = price_floor(worker_prices(load, rate, seat_seconds=seat_seconds))

    cost = worker_prices(load, rate, seat_seconds=seat_seconds).cost(work)

    assert floor.at(work.uncached_tokens) <= cost.total_ms * (1 + 1e-9)


@settings(max_examples=500)
@given(load=loads, rate=rates, work=works, seat_seconds=st.floats(0, 100))
def test_the_floor_is_the_price_of_one_sequence_that_does_not_wait_for_blocks(
    load: WorkerLoad, rate: StepRates, work: Work, seat_seconds: float
) -> None:
    prices = worker_prices(load, rate, seat_seconds=seat_seconds)
    floor = price_floor(prices)
    assert floor.is_price_of(work) == (
        work.sequences == 1
        and (not load.total_blocks or load.pinned_blocks + work.needed_blocks <= load.total_blocks)
    )

    if floor.is_price_of(work):
        assert floor.at(work.uncached_tokens) == pytest.approx(prices.cost(work).total_ms, rel=1e-9)
