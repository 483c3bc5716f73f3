"""The load at which a latency target was missed asks for growth when it comes again."""

from dataclasses import replace

import pytest

from warmfleet_operator.scaling.advice import explained
from warmfleet_operator.scaling.decide import choose
from warmfleet_operator.scaling.decision import ScalingReason
from warmfleet_operator.scaling.policy import LatencyGoal
from warmfleet_operator.scaling.signals import FleetSignals, Traffic
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    PREFILL_RATE,
    TICK_SECONDS,
    Ticks,
    at_rest,
    fleet,
    latencies,
    signals,
)

TARGETED = replace(POLICY, first_token=LatencyGoal(percentile=95, target_milliseconds=1000))
CALM = 800
"""Load of four replicas, in 1/1000 of one of them."""


def served(load_permille: int, milliseconds: float) -> FleetSignals:
    """Four replicas at this load, whose requests took so long; so many that nothing is chance."""
    prompts = round(30 * load_permille / 1000 * PREFILL_RATE)
    traffic = Traffic(seconds=30.0, prompt_tokens=prompts, requests=1_000_000)
    return signals(fleet(4), traffic=traffic, first_token=latencies(milliseconds))


def ask_after(*misses: tuple[int, float], calm_seconds: float = 600, load_permille: int = 2900) -> int:
    """What a load asks for at which no percentile misses, after these loads that missed for 60 s each."""
    ticks = Ticks(TARGETED)
    ticks.run(served(CALM, 200), at_rest(4), 60)
    for missed_permille, milliseconds in misses:
        ticks.run(served(missed_permille, milliseconds), at_rest(4), 60)
        ticks.run(served(CALM, 200), at_rest(4), 120)
    ticks.run(served(CALM, 200), at_rest(4), calm_seconds)
    return ticks.run(served(load_permille, 200), at_rest(4), 20)[-1].to_replicas


def test_the_load_of_a_miss_asks_for_growth_before_the_percentile_does() -> None:
    ticks = Ticks(TARGETED)
    ticks.run(served(CALM, 200), at_rest(4), 60)
    ticks.run(served(2800, 3000), at_rest(4), 60)
    ticks.run(served(CALM, 200), at_rest(4), 600)

    below = ticks.run(served(2700, 200), at_rest(4), 20)[-1]
    above = ticks.run(served(2900, 200), at_rest(4), 20)[-1]

    assert below.to_replicas == 4
    assert (above.to_replicas, above.reason) == (5, ScalingReason.LATENCY_ABOVE_TARGET)
    assert above.recommendations["earlierLatency"] == 5
    assert "a latency target was missed at 70 % of compute" in explained(above)
    assert choose(TARGETED, above.inputs).replicas == 5


@pytest.mark.parametrize(
    ("misses", "replicas"),
    [
        pytest.param((), 4, id="none"),
        pytest.param(((2800, 200.0),), 4, id="a load at which the target was met"),
        pytest.param(((1900, 3000.0),), 4, id="at a low load: of another cause"),
        pytest.param(((3300, 3000.0), (3300, 3000.0), (2100, 3000.0)), 4, id="mostly at a higher one"),
        pytest.param(((2100, 3000.0), (2100, 3000.0), (3300, 3000.0)), 6, id="mostly at a lower one"),
    ],
)
def test_only_misses_that_the_load_explains_count_by_their_median(misses, replicas) -> None:
    assert ask_after(*misses) == replicas


def test_a_miss_asks_for_growth_no_longer_than_a_growth_is_kept() -> None:
    assert ask_after((2800, 3000), calm_seconds=3300) == 5
    assert ask_after((2800, 3000), calm_seconds=3600) == 4


def test_a_load_that_stays_at_that_of_a_miss_changes_the_number_a_few_times_a_day() -> None:
    """It grows by the miss, and shrinks by the demand, until it has been undone often enough."""
    ticks, replicas, numbers = Ticks(TARGETED), 4, [4]
    ticks.run(served(CALM, 200), at_rest(4), 60)
    for second in range(0, 24 * 3600, int(TICK_SECONDS)):
        missed = second % 1800 < 60 and replicas == 4
        view = served(2900, 3000 if missed else 200)
        view = replace(view, replicas=tuple(fleet(replicas)))
        replicas = ticks.tick(view, at_rest(replicas)).to_replicas
        if replicas != numbers[-1]:
            numbers.append(replicas)

    assert max(numbers) <= 6
    assert len(numbers) <= 12
