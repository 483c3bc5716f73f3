"""The load at which a latency target was missed asks for growth when it comes again."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_memory

from warmfleet_operator.scaling.advice import explained
from warmfleet_operator.scaling.decide import choose
from warmfleet_operator.scaling.decision import (
    DecisionInputs,
    ReplicaState,
    ScalingReason,
)
from warmfleet_operator.scaling.memory import ScalingMemory
from warmfleet_operator.scaling.policy import AutoscalingPolicy, LatencyGoal
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
THREE_SAMPLES = 100.0
"""Seconds of misses."""


def served(load_permille: int, milliseconds: float, ready: int = 4, **fields: Any) -> FleetSignals:
    """Replicas at this load, whose requests took so long; so many that nothing is chance."""
    prompts = round(30 * load_permille / 1000 * PREFILL_RATE)
    traffic = Traffic(seconds=30.0, prompt_tokens=prompts, requests=1_000_000)
    return signals(fleet(ready), traffic=traffic, first_token=latencies(milliseconds), **fields)


def calm_ticks() -> Ticks:
    ticks = Ticks(TARGETED)
    ticks.run(served(CALM, 200), at_rest(4), 60)
    return ticks


def asked_at(ticks: Ticks, load_permille: int, policy: AutoscalingPolicy = TARGETED) -> int:
    """What a load asks for at which no percentile misses, ten minutes later."""
    ticks.policy = policy
    ticks.run(served(CALM, 200), at_rest(4), 600)
    return ticks.run(served(load_permille, 200), at_rest(4), 20)[-1].to_replicas


def test_the_load_of_a_miss_asks_for_growth_before_the_percentile_does() -> None:
    ticks = calm_ticks()
    ticks.run(served(2800, 3000), at_rest(4), THREE_SAMPLES)
    ticks.run(served(CALM, 200), at_rest(4), 600)

    below = ticks.run(served(2700, 200), at_rest(4), 20)[-1]
    above = ticks.run(served(2900, 200), at_rest(4), 20)[-1]

    assert below.to_replicas == 4
    assert (above.to_replicas, above.reason) == (5, ScalingReason.LATENCY_ABOVE_TARGET)
    assert above.recommendations["earlierLatency"] == 5
    assert "earlier a latency target was missed at 70 % of compute" in explained(above)
    assert "earlier a latency target" not in explained(below)
    assert choose(TARGETED, above.inputs).replicas == 5


@pytest.mark.parametrize(
    ("misses", "replicas"),
    [
        pytest.param((), 4, id="none"),
        pytest.param(((2800, 200.0, 300),), 4, id="a load at which the target was met"),
        pytest.param(((1900, 3000.0, 300),), 4, id="at a low load: of another cause"),
        pytest.param(((2100, 3000.0, 50),), 4, id="of less than a minute: two samples"),
        pytest.param(((3300, 3000.0, 200), (2100, 3000.0, 50)), 4, id="mostly at a higher one"),
        pytest.param(((2100, 3000.0, 200), (3300, 3000.0, 50)), 6, id="mostly at a lower one"),
    ],
)
def test_only_misses_that_the_load_explains_count_by_their_median(
    misses: list[tuple[int, float, float]], replicas: int
) -> None:
    ticks = calm_ticks()
    for load_permille, milliseconds, seconds in misses:
        ticks.run(served(load_permille, milliseconds), at_rest(4), seconds)
        ticks.run(served(CALM, 200), at_rest(4), 120)

    assert asked_at(ticks, 2900) == replicas


def test_a_miss_asks_for_growth_for_an_hour() -> None:
    ticks = calm_ticks()
    ticks.run(served(2800, 3000), at_rest(4), THREE_SAMPLES)
    ticks.run(served(CALM, 200), at_rest(4), 2800)

    within = ticks.run(served(2900, 200), at_rest(4), 20)[-1]
    ticks.run(served(CALM, 200), at_rest(4), 700)
    after = ticks.run(served(2900, 200), at_rest(4), 20)[-1]

    assert (within.to_replicas, after.to_replicas) == (5, 4)


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(POLICY, id="none"),
        pytest.param(
            replace(POLICY, first_token=LatencyGoal(percentile=95, target_milliseconds=9000)), id="another"
        ),
    ],
)
def test_another_target_knows_nothing_of_the_misses(policy: AutoscalingPolicy) -> None:
    ticks = calm_ticks()
    ticks.run(served(2800, 3000), at_rest(4), THREE_SAMPLES)

    assert asked_at(ticks, 2900, policy) == 4


def test_misses_of_requests_that_waited_for_a_replica_are_those_of_the_fleet_before_it() -> None:
    """At three replicas the load was 90 %, and nothing waits at four, where it is 68 %."""
    relieved = Ticks(TARGETED)
    relieved.run(served(CALM, 200, 3), at_rest(3), 60)
    relieved.run(served(2700, 3000, 3), at_rest(3), 50)
    relieved.run(served(2700, 3000), at_rest(4), 55)
    woken = Ticks(TARGETED)
    woken.run(served(0, 0, 0), ReplicaState(0, 0), 60)
    woken.run(served(2700, 3000), at_rest(4), 55)

    assert {share for _, share in relieved.memory.late_loads} == {900}
    assert woken.memory.late_loads == ()


def test_what_waits_is_no_part_of_the_load_of_a_miss() -> None:
    ticks = calm_ticks()
    ticks.run(served(2800, 3000, queued_tokens=10**9, queued_requests=500), at_rest(4), THREE_SAMPLES)

    assert {share for _, share in ticks.memory.late_loads} == {700}


def test_a_miss_at_what_replicas_were_taken_to_compute_is_a_share_of_it() -> None:
    """Learnt as 400 of 1,000 then, and as all of it later."""
    slow = ScalingMemory(compute_samples=(400,))
    ticks = calm_ticks()
    ticks.memory = replace_memory(ticks.memory, compute_samples=slow.compute_samples)
    ticks.run(served(1120, 3000), at_rest(4), THREE_SAMPLES)
    ticks.memory = replace_memory(ticks.memory, compute_samples=())

    assert asked_at(ticks, 2700) == 4
    assert asked_at(ticks, 2900) == 5


def test_a_clock_that_is_set_back_leaves_no_misses_of_the_future() -> None:
    ticks = calm_ticks()
    ticks.run(served(2800, 3000), at_rest(4), THREE_SAMPLES)
    ticks.now_seconds -= 86_400

    assert asked_at(ticks, 2900) == 4
    assert ticks.memory.late_loads == ()


def test_a_load_that_stays_above_that_of_a_miss_keeps_the_replicas_that_it_asks_for() -> None:
    """What demand alone would let go is asked for again at the next tick."""
    inputs = DecisionInputs(
        spec_replicas=13, ready_replicas=13, known_routers=1, stable_growth=13, stable_need=5,
        late_load_replicas=13, late_load_permille=266, demand_compute_permille=3200, observed_seconds=5000,
        watched_seconds=5000, idle_seconds=-1, changed_seconds=900, growth_limit=26,
    )  # fmt: skip

    assert choose(TARGETED, inputs).replicas == 13
    assert choose(TARGETED, replace(inputs, stable_growth=0)).replicas == 12


def test_a_load_about_that_of_a_miss_changes_the_number_once() -> None:
    ticks, replicas, numbers = calm_ticks(), 4, []
    ticks.run(served(2800, 3000), at_rest(4), THREE_SAMPLES)
    for second in range(0, 3400, int(TICK_SECONDS)):
        load_permille = 2700 if second // 60 % 2 else 2900
        replicas = ticks.tick(served(load_permille, 200, replicas), at_rest(replicas)).to_replicas
        numbers.append(replicas)

    assert set(numbers) == {5}
