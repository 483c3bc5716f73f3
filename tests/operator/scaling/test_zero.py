"""To zero and from zero replicas."""

from dataclasses import replace

import pytest

from warmfleet_operator.scaling.decision import LimitingRule, ReplicaState, ScalingReason
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    SEATS,
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

    by_tokens = ticks.tick(signals(held_requests=100, held_tokens=2 * SUPPLY_TOKENS), at_rest(0))
    by_sequences = ticks.tick(signals(held_requests=4 * SEATS, held_tokens=100), at_rest(0))
    bounded = ticks.tick(signals(held_requests=1000 * SEATS), at_rest(0))

    assert by_tokens.to_replicas == 3, "at once: the rate of growth is that of a fleet that runs"
    assert by_sequences.to_replicas == 5
    assert (bounded.to_replicas, bounded.limit) == (SLEEPER.max_replicas, LimitingRule.MAXIMUM)


def test_a_held_request_wakes_one_replica_however_large_its_body_is():
    """Routers estimate its tokens by the body's size, which a client fills with anything."""
    ticks = Ticks(SLEEPER)
    ticks.run(loaded(1, 5), at_rest(1), 10)

    decision = ticks.tick(signals(held_requests=1, held_tokens=100 * SUPPLY_TOKENS), at_rest(0))

    assert (decision.to_replicas, decision.limit) == (1, LimitingRule.NONE)


def test_a_fleet_about_which_nothing_is_known_wakes_with_one_replica():
    awake = Ticks(SLEEPER).tick(signals(held_requests=500, held_tokens=10**6), at_rest(0))

    assert awake.to_replicas == 1


@pytest.mark.parametrize("missing", [{"missing_routers": 1}, {"missing_replicas": 1}, {"routers": 0}])
def test_what_is_not_known_may_be_a_request(missing):
    ticks = Ticks(SLEEPER)
    ticks.run(signals(fleet(1)), at_rest(1), 590)
    ticks.tick(signals(fleet(1), **missing), at_rest(1))

    assert {item.to_replicas for item in ticks.run(signals(fleet(1)), at_rest(1), 590)} == {1}


def test_one_router_that_answers_is_enough_to_wake():
    awake = Ticks(SLEEPER).tick(signals(held_requests=1, missing_routers=1), at_rest(0))

    assert awake.to_replicas == 1


def test_what_the_last_replica_holds_does_not_keep_a_fleet_awake():
    """The user has set the time; nothing was reused during it."""
    held = fleet(1, unique_blocks=6000, unique_value_tokens_per_second=1e6, prefill_tokens_per_second=1.0)

    assert last(SLEEPER, signals(held), at_rest(1), 700).to_replicas == 0


def test_a_fleet_that_gets_no_place_sleeps_when_nothing_is_asked_for():
    waits = ReplicaState(spec_replicas=1, ready=0, pending=1, unschedulable=1)

    assert last(SLEEPER, signals(), waits, 700).to_replicas == 0


def test_a_newcomer_that_is_not_ready_does_not_go():
    starts = ReplicaState(spec_replicas=1, ready=0, pending=1)
    decision = last(SLEEPER, signals(), starts, 1200)

    assert (decision.to_replicas, decision.limit) == (1, LimitingRule.NOT_READY)
