"""Cost in milliseconds against the formula worked out by hand, and its monotony."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.cache.kv_events import LoadReport, StepTimeFit
from warmfleet_router.routing.cost import (
    PRIOR,
    RatesSource,
    StepRates,
    Work,
    WorkerLoad,
    measured_rates,
    median_rates,
    worker_load,
    worker_prices,
)

RATES = StepRates(
    base_seconds=0.010,
    per_prefill_token_seconds=0.001,
    per_decode_sequence_seconds=0.002,
    per_context_token_seconds=0.00001,
    source=RatesSource.MEASURED,
)


def fit(per_token: float, samples: int = 100) -> StepTimeFit:
    return StepTimeFit(base_seconds=0.01, per_prefill_token_seconds=per_token, samples=samples)


def test_an_idle_worker_costs_the_own_prefill_one_step_and_half_a_prefill_of_those_that_come_later() -> None:
    cost = worker_prices(WorkerLoad(), RATES, seat_seconds=4).cost(Work(100, 7))

    assert cost.prefill_ms == pytest.approx(100)
    assert cost.base_ms == pytest.approx(10)
    assert (cost.wait_ms, cost.externality_ms) == (0, 0)
    assert cost.later_ms == pytest.approx(50)
    assert cost.ttft_ms == pytest.approx(110)
    assert cost.total_ms == pytest.approx(160)


def test_a_wait_behind_one_cold_prompt_is_worth_not_computing_a_shared_prefix_again() -> None:
    cold = worker_prices(WorkerLoad(), RATES, seat_seconds=4).cost(Work(304, 20))
    behind_one = WorkerLoad(waiting_sequences=1, queued_uncached_tokens=304)
    warm = worker_prices(behind_one, RATES, seat_seconds=4).cost(Work(48, 3))
    behind_two = WorkerLoad(waiting_sequences=2, queued_uncached_tokens=608)
    late = worker_prices(behind_two, RATES, seat_seconds=4).cost(Work(48, 3))

    assert cold.ttft_ms < warm.ttft_ms
    assert warm.total_ms < cold.total_ms < late.total_ms


def test_queued_tokens_come_first_and_running_sequences_pay_for_the_prefill() -> None:
    load = WorkerLoad(running_sequences=3, queued_uncached_tokens=50, context_tokens=1000)

    cost = worker_prices(load, RATES, seat_seconds=4).cost(Work(100, 7))

    assert cost.prefill_ms == pytest.approx(150)
    assert cost.base_ms == pytest.approx(10 + 3 * 2 + 10)
    assert cost.externality_ms == pytest.approx((100 + 2) * 3)
    assert cost.later_ms == pytest.approx(50)
    assert cost.ttft_ms == pytest.approx(150 + 26)


def test_prefill_below_the_knee_costs_nothing_and_decodes_fill_it_first() -> None:
    rates = msgspec.structs.replace(RATES, knee_tokens=64)
    load = WorkerLoad(running_sequences=4, queued_uncached_tokens=20)

    below = worker_prices(load, rates, seat_seconds=4).cost(Work(40, 7))
    above = worker_prices(load, rates, seat_seconds=4).cost(Work(100, 7))

    assert below.prefill_ms == 0
    assert below.externality_ms == pytest.approx(2 * 4)
    assert above.prefill_ms == pytest.approx(20 + 100 - (64 - 4))
    assert above.externality_ms == pytest.approx((60 + 2) * 4)
    assert (below.later_ms, above.later_ms) == (0, pytest.approx(30))
    assert below.base_ms == above.base_ms == pytest.approx(10 + 4 * 2)


@pytest.mark.parametrize(
    ("running", "waiting", "expected_ms"),
    [(3, 0, 0), (4, 0, 1000), (4, 1, 2000), (4, 4, 5000)],
    ids=["a free seat", "full", "one ahead", "four ahead"],
)
def test_the_wait_for_a_seat_grows_with_who_stands_ahead(
    running: int, waiting: int, expected_ms: float
) -> None:
    load = WorkerLoad(running_sequences=running, waiting_sequences=waiting, max_running_sequences=4)

    assert worker_prices(load, RATES, seat_seconds=4).cost(Work(1, 1)).wait_ms == pytest.approx(expected_ms)


def test_pinned_blocks_are_waited_for_and_evictable_ones_are_not() -> None:
    full = WorkerLoad(running_sequences=2, total_blocks=100, pinned_blocks=95)
    cached = WorkerLoad(running_sequences=2, total_blocks=100, pinned_blocks=10)

    assert worker_prices(full, RATES, seat_seconds=4).cost(Work(1, 10)).wait_ms == pytest.approx(2000)
    assert worker_prices(cached, RATES, seat_seconds=4).cost(Work(1, 10)).wait_ms == 0


def test_a_worker_without_samples_is_judged_by_the_median_of_its_peers() -> None:
    fits = [fit(0.001), fit(0.002), fit(0.009), fit(5.0, samples=0)]

    assert measured_rates(fits[-1]) is None
    assert median_rates(fits).per_prefill_token_seconds == 0.002
    assert median_rates(fits).source is RatesSource.PEERS
    assert median_rates([fit(1.0, samples=0)]) is PRIOR


@pytest.mark.parametrize("per_token", [5e-324, 1e-12, 9e-8])
def test_no_prefill_counts_as_faster_than_ten_million_tokens_per_second(per_token: float) -> None:
    rates = measured_rates(fit(per_token))

    assert rates is not None
    assert rates.per_prefill_token_seconds == 1e-7


@pytest.mark.parametrize(("reported", "known"), [(2048, 2048), (msgspec.UNSET, 0)])
def test_how_many_tokens_a_step_takes_is_known_from_a_report_that_has_it(
    reported: int | msgspec.UnsetType, known: int
) -> None:
    report = LoadReport(fixed_batched_tokens=reported)

    load = worker_load(report, unreported_tokens=0, unreported_seats=0, unreported_blocks=0)

    assert load.fixed_batched_tokens == known


def test_dispatches_beyond_the_report_take_free_seats_first() -> None:
    report = LoadReport(running_sequences=2, max_running_sequences=4, queued_uncached_tokens=10)

    load = worker_load(report, unreported_tokens=90, unreported_seats=3, unreported_blocks=5)

    assert (load.running_sequences, load.waiting_sequences) == (4, 1)
    assert load.queued_uncached_tokens == 100
    assert load.pinned_blocks == 5


@given(
    uncached=st.integers(0, 100_000),
    more=st.integers(0, 1000),
    running=st.integers(0, 64),
    queued=st.integers(0, 100_000),
    pinned=st.integers(0, 1000),
    knee=st.integers(0, 500),
)
def test_more_work_or_more_load_never_costs_less(
    uncached: int, more: int, running: int, queued: int, pinned: int, knee: int
) -> None:
    rates = msgspec.structs.replace(RATES, knee_tokens=knee)
    load = WorkerLoad(
        running_sequences=running,
        max_running_sequences=64,
        queued_uncached_tokens=queued,
        total_blocks=1000,
        pinned_blocks=pinned,
    )
    cost = worker_prices(load, rates, seat_seconds=4).cost(Work(uncached, 10)).total_ms

    busier = WorkerLoad(
        running_sequences=running,
        max_running_sequences=64,
        queued_uncached_tokens=queued + more,
        total_blocks=1000,
        pinned_blocks=pinned,
    )
    assert worker_prices(load, rates, seat_seconds=4).cost(Work(uncached + more, 10)).total_ms >= cost >= 0
    assert worker_prices(busier, rates, seat_seconds=4).cost(Work(uncached, 10)).total_ms >= cost


def test_a_sequence_that_ended_frees_its_seat_for_one_that_waits_at_the_worker() -> None:
    report = LoadReport(running_sequences=4, waiting_sequences=1, max_running_sequences=4, pinned_blocks=9)

    load = worker_load(
        report, unreported_tokens=0, unreported_seats=1, unreported_blocks=2, ended_seats=2, ended_blocks=5
    )

    assert (load.running_sequences, load.waiting_sequences) == (4, 0)
    assert load.pinned_blocks == 6
