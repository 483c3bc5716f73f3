import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_cli.bench.open_loop import LEAST_LOAD_RATIO, MOST_LOAD_RATIO, choose_rate


def test_a_fast_machine_runs_at_half_of_its_saturation():
    assert choose_rate(10.0, requests=100, seconds=300) == 5.0


def test_a_slower_machine_is_driven_as_hard_as_the_time_asks():
    assert choose_rate(2.0, requests=450, seconds=300) == 1.5


def test_a_machine_that_is_too_slow_takes_longer_and_is_not_driven_into_saturation():
    assert choose_rate(1.0, requests=900, seconds=300) == MOST_LOAD_RATIO
    assert choose_rate(1.0, requests=900, seconds=-5) == MOST_LOAD_RATIO


@given(st.floats(0.1, 100), st.integers(1, 10_000), st.floats(-10, 1000))
def test_the_rate_is_always_below_saturation(saturation, requests, seconds):
    rate = choose_rate(saturation, requests=requests, seconds=seconds)

    assert (
        LEAST_LOAD_RATIO * saturation
        <= rate
        <= MOST_LOAD_RATIO * saturation
        == pytest.approx(0.8 * saturation)
    )
