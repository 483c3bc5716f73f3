"""When a worker has capacity, and which tenants may use the last of it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_router.admission.fair_share import FairShare
from warmfleet_router.routing.capacity import CapacityLimits, Need, Shortage, shortage_in, window_seconds
from warmfleet_router.routing.cost import RatesSource, StepRates, WorkerLoad

RATES = StepRates(0.01, 0.001, 0.0, 0.0, RatesSource.MEASURED)  # 1,000 prompt tokens per second
RULE = CapacityLimits(least_window_seconds=0.1, headroom_ratio=1 / 8)


def load(running: int = 1, waiting: int = 0, queued: int = 0, pinned: int = 0) -> WorkerLoad:
    return WorkerLoad(
        running_sequences=running,
        waiting_sequences=waiting,
        max_running_sequences=16,
        queued_uncached_tokens=queued,
        total_blocks=100,
        pinned_blocks=pinned,
    )


@pytest.mark.parametrize(
    ("state", "need", "expected"),
    [
        (load(running=15), Need(1), None),
        (load(running=16), Need(1), Shortage.SEATS),
        (load(running=12, waiting=4), Need(1), Shortage.SEATS),
        (load(running=9), Need(8), Shortage.SEATS),
        (load(pinned=90), Need(1, blocks=10), None),
        (load(pinned=90), Need(1, blocks=11), Shortage.BLOCKS),
        (load(queued=99), Need(1), None),
        (load(queued=100), Need(1), Shortage.PREFILL),
        (load(running=0), Need(99, blocks=1000), None),
        (load(running=13), Need(1, may_use_headroom=False), None),
        (load(running=14), Need(1, may_use_headroom=False), Shortage.SEATS),
        (load(pinned=86), Need(1, blocks=2, may_use_headroom=False), Shortage.BLOCKS),
        (WorkerLoad(running_sequences=10_000), Need(1, blocks=10_000), None),
    ],
    ids=[
        "the last seat",
        "no seat",
        "seats that waiting ones will have",
        "fewer seats than choices",
        "the last blocks",
        "too few blocks",
        "within the window",
        "window full",
        "an empty worker takes anything",
        "below the headroom",
        "the headroom's seats are kept",
        "the headroom's blocks are kept",
        "a worker that reports no bounds",
    ],
)
def test_capacity_is_seats_blocks_and_a_short_prefill_queue(
    state: WorkerLoad, need: Need, expected: Shortage | None
) -> None:
    assert shortage_in(state, RATES, need, RULE) is expected


LONG_STEPS = StepRates(0.09, 0.001, 0.01, 0.00001, RatesSource.MEASURED)
LONGEST_STEPS = msgspec.structs.replace(LONG_STEPS, base_seconds=0.3)


@pytest.mark.parametrize(
    ("rates", "batched_tokens", "window_tokens"),
    [
        (LONG_STEPS, 2048, 360),
        (LONG_STEPS, 0, 100),
        (LONG_STEPS, 206, 200),
        (LONG_STEPS, 50, 100),
        (LONG_STEPS, 4, 100),
        (LONGEST_STEPS, 2048, 1000),
        (RATES, 2048, 100),
    ],
    ids=[
        "what four steps take in any case",
        "steps of no set number of tokens",
        "no more than a step takes beside six decodes",
        "never less than 100 ms",
        "decodes alone fill a step",
        "never more than a second",
        "steps that are short",
    ],
)
def test_prompts_are_queued_for_one_step_where_a_step_takes_long_without_them(
    rates: StepRates, batched_tokens: int, window_tokens: int
) -> None:
    """One by one they would each pay for such a step."""

    def lack(queued: int) -> Shortage | None:
        load = WorkerLoad(
            running_sequences=6, queued_uncached_tokens=queued, fixed_batched_tokens=batched_tokens
        )
        return shortage_in(load, rates, Need(1), RULE)

    assert lack(window_tokens - 1) is None
    assert lack(window_tokens + 1) is Shortage.PREFILL


@given(running=st.integers(0, 300), more=st.integers(0, 300), tokens=st.integers(0, 4096))
def test_nothing_that_is_sent_to_a_worker_widens_its_window(running: int, more: int, tokens: int) -> None:
    load = WorkerLoad(running_sequences=running, context_tokens=100 * running, fixed_batched_tokens=tokens)
    busier = WorkerLoad(
        running_sequences=running + more,
        context_tokens=100 * (running + more),
        queued_uncached_tokens=more,
        fixed_batched_tokens=tokens,
    )

    assert window_seconds(busier, LONG_STEPS, RULE) <= window_seconds(load, LONG_STEPS, RULE)


def test_a_worker_with_one_seat_keeps_none() -> None:
    single = WorkerLoad(max_running_sequences=1)

    assert shortage_in(single, RATES, Need(1, may_use_headroom=False), RULE) is None


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_tenant_alone_is_within_its_share_with_any_number_of_seats() -> None:
    shares = FairShare(Clock())
    shares.seen("only", 1.0)
    shares.take("only", 100)

    assert shares.is_within("only", 1.0, 1, 16)


def test_shares_follow_weights_while_others_were_there_lately() -> None:
    clock = Clock()
    shares = FairShare(clock, recent_seconds=300)
    shares.seen("heavy", 3.0)
    shares.seen("light", 1.0)
    shares.take("heavy", 11)
    shares.take("light", 4)

    assert shares.is_within("heavy", 3.0, 1, 16)
    assert not shares.is_within("heavy", 3.0, 2, 16)
    assert not shares.is_within("light", 1.0, 1, 16)
    clock.now = 200
    shares.seen("heavy", 3.0)
    clock.now = 301
    shares.expire()
    assert shares.is_within("heavy", 3.0, 5, 16)


def test_a_tenant_without_a_seat_is_within_its_share_even_with_many_choices() -> None:
    shares = FairShare(Clock())
    shares.seen("a", 1.0)
    shares.seen("b", 1.0)

    assert shares.is_within("a", 1.0, 12, 16)
    shares.take("a", 12)
    shares.give_back("a", 12)
    assert "a" not in shares._seats
