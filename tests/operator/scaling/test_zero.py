"""To zero and from zero replicas."""

from dataclasses import replace

import pytest

from warmfleet_operator.scaling.decision import LimitingRule, ScalingReason
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    SUPPLY_TOKENS,
    Ticks,
    at_rest,
    fleet,
    last,
    loaded,
    misses,
    signals,
)

SLEEPER = replace(POLICY, min_replicas=0)


def test_a_fleet_that_was_idle_for_its_time_sleeps():
    ticks = Ticks(SLEEPER)

    decisions = ticks.run(signals(fleet(1)), at_rest(1), 610)

    asleep = [index for index, item in enumerate(decisions) if item.to_replicas == 0]
    assert asleep[0] == 600 / 2
    assert decisions[-1].reason is ScalingReason.IDLE


@pytest.mark.parametrize(
    "view",
    [
        signals(fleet(1, running_sequences=1)),
        signals(fleet(1, waiting_sequences=1)),
        signals(fleet(1), queued_requests=1),
        signals(fleet(1), traffic=misses(10)),
    ],
    ids=["running", "waiting at the worker", "queued at a router", "just answered"],
)
def test_any_request_keeps_the_last_replica(view):
    ticks = Ticks(SLEEPER)
    ticks.run(signals(fleet(1)), at_rest(1), 590)
    ticks.tick(view, at_rest(1))

    assert {item.to_replicas for item in ticks.run(signals(fleet(1)), at_rest(1), 590)} == {1}


def test_a_fleet_that_may_not_sleep_keeps_its_last_replica():
    decision = last(POLICY, signals(fleet(1)), at_rest(1), 1200)

    assert (decision.to_replicas, decision.limit) == (1, LimitingRule.MINIMUM)


def test_a_held_request_wakes_a_fleet_at_once():
    ticks = Ticks(SLEEPER)
    asleep = ticks.tick(signals(), at_rest(0))
    awake = ticks.tick(signals(held_requests=1, held_tokens=500), at_rest(0))

    assert asleep.to_replicas == 0
    assert (awake.to_replicas, awake.reason) == (1, ScalingReason.REQUESTS_HELD)


def test_many_held_requests_wake_as_many_replicas_as_they_need():
    """What a replica takes is remembered while none is there."""
    ticks = Ticks(SLEEPER)
    ticks.run(loaded(1, 5), at_rest(1), 10)

    awake = ticks.tick(signals(held_requests=100, held_tokens=2 * SUPPLY_TOKENS), at_rest(0))

    assert awake.to_replicas == 2, "three are needed, and the rate allows two"
