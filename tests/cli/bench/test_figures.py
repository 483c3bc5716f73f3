import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_cli.bench.figures import Spread, Target, mean, median, percentile


@given(st.lists(st.integers(-1000, 1000), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values, percent):
    found = percentile(values, percent)

    def share(limit):
        return Fraction(sum(value <= limit for value in values), len(values))

    assert share(found) >= Fraction(percent, 100)
    assert all(share(value) < Fraction(percent, 100) for value in values if value < found)


def test_no_values_give_not_a_number_rather_than_a_flattering_zero():
    assert math.isnan(mean([]))
    assert math.isnan(median([]))
    assert math.isnan(percentile([], 90))
    assert math.isnan(Spread.over([]).mean)


def test_a_spread_names_the_lowest_and_the_highest_run():
    assert Spread.over([3.0, 1.0, 2.0]) == Spread(mean=2.0, low=1.0, high=3.0)


def test_a_missed_target_shows_by_how_much():
    target = Target("LowestCost reuses", measured=92.5, required=95.0, unit=" %")

    assert not target.reached
    assert target.verdict() == "LowestCost reuses: 92.5 % (at least 95 % asked): missed by 2.5 %"


@pytest.mark.parametrize(
    ("measured", "at_least", "reached"),
    [(5.0, True, True), (4.9, True, False), (5.0, False, True), (5.1, False, False), (math.nan, True, False)],
)
def test_a_target_is_reached_on_its_own_side_only(measured, at_least, reached):
    assert Target("x", measured=measured, required=5.0, at_least=at_least).reached is reached


def test_a_target_that_is_missed_by_less_than_is_shown_states_by_how_much():
    assert Target("times", 1.599, 1.6).verdict() == "times: 1.6 (at least 1.6 asked): missed by 0.001"
