"""What of a demand is chance, and what a rise of the load."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_operator.scaling.chance import Level, Means, certain, lasting
from warmfleet_operator.scaling.signals import Traffic
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    SUPPLY_TOKENS,
    Ticks,
    at_rest,
    fleet,
    signals,
)

MOMENTS_OF_A_DAY = 2880
DAYS = 8
OBSERVED = 200

DEMANDS = st.floats(0, 1e12)
REQUESTS = st.floats(0, 1e6)
LEVELS = st.builds(Level, mean=DEMANDS, requests=REQUESTS, observed_requests=REQUESTS)


def sum_of(draw: random.Random, expected: float) -> float:
    """Of as many requests as arrive independently, with exponential lengths of 1 in the mean."""
    requests, at = 0, draw.expovariate(1.0)
    while at < expected:
        requests, at = requests + 1, at + draw.expovariate(1.0)
    return draw.gammavariate(requests, 1.0) if requests else 0.0


@pytest.mark.parametrize("requests", [2, 12, 100])
def test_a_constant_load_seems_to_rise_about_once_a_day(requests):
    """The mean is of 200 requests, and off by chance, too."""
    draw, rises = random.Random(requests), 0
    for _ in range(DAYS * MOMENTS_OF_A_DAY):
        mean = requests * draw.gammavariate(OBSERVED / 2, 2 / OBSERVED)
        rises += Level(mean, mean, OBSERVED).is_below(sum_of(draw, requests))

    assert rises <= 3 * DAYS


@pytest.mark.parametrize(("requests", "times"), [(2, 9.5), (12, 3.2), (100, 1.7), (10_000, 1.5)])
def test_how_far_a_load_must_rise_depends_on_how_many_requests_it_has(requests, times):
    level = Level(1000.0, requests, OBSERVED)

    assert level.is_below(1000.0 * times)
    assert not level.is_below(1000.0 * (1 + (times - 1) / 1.5))


def test_a_level_is_no_higher_than_the_moments_of_late_and_known_from_their_requests():
    level = Level(1000.0, 40.0, 200.0)

    assert level.bounded(1000.0, 10.0) == level
    assert level.bounded(250.0, 50.0) == Level(250.0, 10.0, 50.0)
    assert level.bounded(250.0, 300.0) == Level(250.0, 10.0, 200.0)
    assert level.bounded(0.0, 1.0).highest_of_day == 0


@given(demand=DEMANDS, requests=REQUESTS, level=LEVELS)
def test_what_counts_is_never_more_than_there_is_nor_less_than_is_certain(demand, requests, level):
    counts = lasting(demand, requests, level)

    assert certain(demand, requests) <= counts <= demand
    assert counts >= min(demand, level.mean)


@given(demands=st.tuples(DEMANDS, DEMANDS), requests=REQUESTS, level=LEVELS)
def test_a_higher_demand_never_counts_less(demands, requests, level):
    lower, higher = sorted(demands)

    assert lasting(lower, requests, level) <= lasting(higher, requests, level)


def held(percent: int, requests: int):
    """Four replicas whose memory is held to this percent, by so many sequences in all."""
    pinned = SUPPLY_TOKENS * percent // 100
    return signals(
        fleet(4, pinned_tokens=pinned, running_sequences=requests // 4, seats=10_000),
        traffic=Traffic(seconds=30.0, prompt_tokens=1000 * requests, requests=requests),
    )


def growth_within(seconds: float, before: int) -> int:
    """How many replicas 120 requests add that hold 95 %, after others of equal size that held `before`."""
    ticks = Ticks(POLICY)
    ticks.run(held(before, 120 * before // 95), at_rest(4), 600)
    return ticks.run(held(95, 120), at_rest(4), seconds)[-1].to_replicas - 4


def test_a_load_that_rises_by_more_than_chance_adds_replicas_before_the_mean_follows():
    """120 requests above the threshold by a tenth are chance after 100, and none after 50."""
    assert growth_within(12, before=40) == 1
    assert growth_within(12, before=80) == 0


def test_means_of_a_fleet_without_requests_end_at_nothing_and_stay_finite_on_the_way():
    means = Means(
        load_permille=900.0,
        tokens=1e5,
        sequences=8.0,
        requests=20.0,
        requests_per_second=0.7,
        seconds=1800.0,
    )
    nothing = Means(load_permille=0.0, tokens=0.0, sequences=0.0)
    for _ in range(20 * 86_400 // 60):
        means = means.followed(nothing, 60.0)
        levels = (means.load_level, means.tokens_level, means.sequences_level)
        assert all(math.isfinite(level.highest_of_day) for level in levels)

    assert (means.load_permille, means.requests, means.requests_per_second) == (0.0, 0.0, 0.0)
