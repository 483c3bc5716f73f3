"""Percentiles of many gaps, within one percent."""

import math
import random

import pytest

from warmfleet_simulator.replica.token_gaps import TokenGaps


def test_percentiles_are_within_one_percent_of_the_exact_ones() -> None:
    draw, gaps = random.Random(3), TokenGaps()
    values = [draw.lognormvariate(-4, 1.5) for _ in range(5000)]
    for seconds in values:
        gaps.add(round(seconds * 1e12))

    in_order = sorted(values)
    for percent in (1, 50, 90, 99, 100):
        exact = in_order[math.ceil(5000 * percent / 100) - 1]
        assert gaps.percentile_seconds(percent) == pytest.approx(exact, rel=0.0101)


@pytest.mark.parametrize("growth_ps", [0, 10**6, 10**9])
def test_a_series_counts_as_its_gaps_one_by_one(growth_ps: int) -> None:
    series, one_by_one = TokenGaps(), TokenGaps()
    series.add_series(3 * 10**10, growth_ps, steps=40, count=3)
    for step in range(40):
        one_by_one.add(3 * 10**10 + step * growth_ps, 3)

    assert series.counts == one_by_one.counts
    assert series.total == 120


def test_gaps_of_several_replicas_add_up() -> None:
    both, other = TokenGaps(), TokenGaps()
    both.add(10**9, 3)
    other.add(10**12, 1)
    both.merge(other)

    assert both.total == 4
    assert both.percentile_seconds(75) == pytest.approx(0.001, rel=0.0101)
    assert both.percentile_seconds(76) == pytest.approx(1.0, rel=0.0101)


def test_without_gaps_there_is_no_percentile_and_the_longest_have_a_bucket() -> None:
    gaps = TokenGaps()
    assert gaps.percentile_seconds(50) is None
    gaps.add(10**30)
    gaps.add(0)
    assert gaps.percentile_seconds(100) == pytest.approx(1e-6 * 1.01**2199)
