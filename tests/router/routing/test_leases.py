"""What a worker's reports of a plain answer do to its lease."""

import math

import pytest

from warmfleet_contracts.cache.kv_events import MAX_COUNT, Frame, LoadReport, PlainAnswer
from warmfleet_router.routing.cost import PRIOR_SEAT_SECONDS
from warmfleet_router.routing.leases import Charge, Lease, Leases


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(clock: Clock) -> Leases:
    return Leases("router-a", clock)


@pytest.fixture
def lease(leases: Leases) -> Lease:
    return leases.lease(Charge("w0", uncached_tokens=50, blocks=4)).open()


def report(leases: Leases, *answers: PlainAnswer, uid: str = "w0", router_id: str = "router-a") -> None:
    load = LoadReport(plain_answers={router_id: list(answers)})
    leases.frame_arrived(uid, Frame(epoch="e", seq=0, load=load))


def test_a_report_ends_the_prefill_and_times_the_seat(clock: Clock, leases: Leases, lease: Lease) -> None:
    clock.now += 3
    report(leases, PlainAnswer(lease.dispatch, 0.5, 2.0, 7))
    still_charged = leases.dispatches.unreported("w0", {})
    clock.now += 5
    lease.close(ended_well=True)

    assert not lease.is_prefilling
    assert (still_charged.tokens, still_charged.seats) == (0, 1)
    assert (lease.first_token_after_seconds, lease.generated_tokens) == (2.0, 7)
    assert leases.seat_times.seconds("w0") == 7.5


def test_a_report_that_comes_late_or_again_gives_the_same_times(
    clock: Clock, leases: Leases, lease: Lease
) -> None:
    clock.now += 6
    report(leases, PlainAnswer(lease.dispatch, 0.5, 2.0, 30))
    clock.now += 1
    report(leases, PlainAnswer(lease.dispatch, 0.5, 2.0, 20))
    lease.close(ended_well=True)

    assert (lease.first_token_after_seconds, lease.generated_tokens) == (2.0, 30)
    assert leases.seat_times.seconds("w0") == 6.5


@pytest.mark.parametrize("other", ["worker", "router", "dispatch"])
def test_reports_of_another_worker_router_or_dispatch_change_nothing(
    leases: Leases, lease: Lease, other: str
) -> None:
    report(
        leases,
        PlainAnswer(lease.dispatch + (other == "dispatch"), 0.0, 0.0, 7),
        uid="w1" if other == "worker" else "w0",
        router_id="router-b" if other == "router" else "router-a",
    )

    assert lease.is_prefilling
    assert (lease.first_token_after_seconds, lease.generated_tokens) == (None, 0)


def test_a_lease_that_was_given_back_is_not_found_any_more(leases: Leases, lease: Lease) -> None:
    lease.close()

    report(leases, PlainAnswer(lease.dispatch, 0.0, 0.0, 7))

    assert lease.generated_tokens == 0


@pytest.mark.parametrize("seconds", [-1.0, 1e12, math.inf, -math.inf, math.nan])
def test_times_outside_of_the_lease_are_not_believed(
    clock: Clock, leases: Leases, lease: Lease, seconds: float
) -> None:
    clock.now += 4

    report(leases, PlainAnswer(lease.dispatch, seconds, seconds, -5))
    lease.close(ended_well=True)

    assert lease.first_token_after_seconds is not None
    assert 0.0 <= lease.first_token_after_seconds <= 4.0
    assert 0.0 <= leases.seat_times.seconds("w0") <= 4.0
    assert lease.generated_tokens == 0


def test_a_worker_reports_no_more_tokens_than_the_answer_may_have(leases: Leases) -> None:
    lease = leases.lease(Charge("w0", uncached_tokens=50, blocks=4), most_generated_tokens=40).open()

    reported = []
    for tokens in (39, 40, 41, MAX_COUNT):
        report(leases, PlainAnswer(lease.dispatch, 0.5, 2.0, tokens))
        reported.append(lease.generated_tokens)

    assert reported == [39, 40, 40, 40]


def test_a_whole_answer_without_a_report_teaches_no_seat_time(
    clock: Clock, leases: Leases, lease: Lease
) -> None:
    clock.now += 4
    lease.first_byte()
    lease.close(ended_well=True)

    assert leases.seat_times.seconds("w0") == PRIOR_SEAT_SECONDS
