"""How long a container waits before it runs again."""

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_devcluster.node.container.backoff import Backoff


def test_the_first_restart_is_immediate_then_ten_seconds_doubled_up_to_five_minutes():
    waits = [Backoff().delay_seconds(failures) for failures in range(1, 10)]
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300, 300]


@given(st.integers(1, 10**9), st.floats(0.001, 2))
def test_no_wait_is_longer_than_the_limit_nor_shorter_than_the_one_before(failures, ratio):
    backoff = Backoff().scaled(ratio)
    assert backoff.delay_seconds(failures) <= backoff.delay_seconds(failures + 1) <= backoff.limit_seconds


def test_a_long_run_forgives():
    assert not Backoff().forgets(599)
    assert Backoff().forgets(600)
