"""The service rate against streams of departures worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_router.admission.service_rate import ServiceRate, retry_after_seconds


def test_nothing_is_known_before_anything_waited() -> None:
    assert ServiceRate().rate(5.0) is None
    assert ServiceRate().seconds(100, 5.0) is None


def test_the_rate_is_what_left_in_the_last_ten_seconds() -> None:
    service = ServiceRate()
    service.filled(100.0)
    for tenth in range(400):  # 10 per second for 20 s, then 20 per second
        service.served(1.0 if tenth < 200 else 2.0, 100.0 + tenth / 10, waited_seconds=0.0)

    assert service.rate(140.0) == pytest.approx(20, rel=0.05)
    assert service.seconds(200, 140.0) == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("filled_again", [5.1, 1000.0])
def test_a_new_wait_begins_with_the_rate_of_the_last_one_whose_service_is_not_its_own(
    filled_again: float,
) -> None:
    service = ServiceRate()
    service.filled(0.0)
    for tenth in range(50):
        service.served(1.0, tenth / 10, waited_seconds=9.0)
    service.emptied(5.0)

    service.filled(filled_again)

    assert service.rate(filled_again + 0.5) == pytest.approx(10, rel=0.1)
    assert service.rate(filled_again + 2.0) == 0
    assert not service.stands(filled_again + 10.0, 3.0)


def standing(service: ServiceRate, *waits: float, until: float) -> bool:
    """Whether a queue that began at 0 stands, if one request was served each second, after these waits."""
    service.filled(0.0)
    for second, waited in enumerate(waits, start=1):
        service.served(1.0, float(second), waited_seconds=waited)
    return service.stands(until, 1.5)


def test_a_queue_stands_if_all_that_was_served_in_ten_seconds_has_waited_for_long() -> None:
    assert standing(ServiceRate(), *[2.0] * 10, until=10.0)
    assert standing(ServiceRate(), 0.1, *[2.0] * 10, until=11.01)  # the first one was served before


def test_a_queue_does_not_stand_where_one_request_was_served_in_time() -> None:
    assert not standing(ServiceRate(), *[2.0] * 9, 1.5, until=10.0)
    assert not standing(ServiceRate(), 0.1, *[2.0] * 10, until=11.0)


def test_a_queue_that_has_just_begun_does_not_stand_nor_one_of_which_nothing_is_served() -> None:
    assert not standing(ServiceRate(), *[2.0] * 9, until=9.99)
    assert not standing(ServiceRate(), until=60.0)
    assert not standing(ServiceRate(), *[2.0] * 10, until=20.01)
    emptied = ServiceRate()
    assert standing(emptied, *[2.0] * 10, until=10.0)
    emptied.emptied(11.0)
    assert not emptied.stands(11.0, 1.5)


def test_the_least_wait_counts_of_requests_that_leave_at_the_same_moment() -> None:
    service = ServiceRate()
    service.filled(0.0)
    for waited in (9.0, 0.1, 9.0):
        service.served(1.0, 9.5, waited_seconds=waited)

    assert not service.stands(12.0, 1.5)


def test_a_queue_that_is_not_served_takes_for_ever_and_a_minute_is_sent() -> None:
    service = ServiceRate()
    service.filled(0.0)

    assert service.seconds(1, 5.0) == math.inf
    assert retry_after_seconds(service.seconds(1, 5.0)) == 60


@given(st.none() | st.floats(0, 1e9), st.floats(0, 100))
def test_retry_after_is_whole_bounded_and_rises_with_the_wait(seconds: float | None, more: float) -> None:
    value = retry_after_seconds(seconds)

    assert isinstance(value, int)
    assert 1 <= value <= 60
    if seconds is not None:
        assert value <= retry_after_seconds(seconds + more)
        assert value >= min(seconds, 60)
