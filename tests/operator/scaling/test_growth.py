"""Limits of growth: its rate, its bounds, how long demand must last, and replicas that get no place."""

from dataclasses import replace

from warmfleet_operator.scaling.decision import LimitingRule, ReplicaState, ScalingReason
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    SUPPLY_TOKENS,
    Ticks,
    at_rest,
    fleet,
    last,
    loaded,
    signals,
)


def test_growth_is_limited_by_rate_and_by_the_maximum():
    flooded = signals(fleet(3, pinned_tokens=SUPPLY_TOKENS), queued_requests=900, queued_tokens=9_000_000)

    by_rate = last(POLICY, flooded, at_rest(3), 20)
    by_maximum = last(replace(POLICY, max_replicas=5), flooded, at_rest(3), 20)

    assert (by_rate.to_replicas, by_rate.limit) == (6, LimitingRule.RATE)
    assert (by_maximum.to_replicas, by_maximum.limit) == (5, LimitingRule.MAXIMUM)


def test_what_a_period_added_already_counts_against_its_rate():
    flooded = signals(fleet(3, pinned_tokens=SUPPLY_TOKENS), queued_requests=900, queued_tokens=9_000_000)
    ticks = Ticks(POLICY)
    ticks.run(flooded, at_rest(3), 20)

    same_period = ticks.run(flooded, ReplicaState(spec_replicas=6, ready=3, pending=3), 20)
    next_period = ticks.run(flooded, ReplicaState(spec_replicas=6, ready=3, pending=3), 20)

    assert {decision.to_replicas for decision in same_period} == {6}
    assert next_period[-1].to_replicas == 12


def test_growth_waits_until_demand_has_lasted_unless_there_is_a_panic():
    calm, panic = Ticks(POLICY), Ticks(POLICY)

    first = calm.tick(loaded(4, 100), at_rest(4))
    later = calm.run(loaded(4, 100), at_rest(4), 10)[-1]
    at_once = panic.tick(replace(loaded(4, 100), queued_tokens=900_000), at_rest(4))

    assert (first.to_replicas, later.to_replicas) == (4, 5)
    assert at_once.to_replicas == 8
    assert at_once.inputs.panic == 1


def test_a_moment_without_demand_begins_the_wait_for_growth_anew():
    ticks = Ticks(POLICY)
    ticks.run(loaded(4, 100), at_rest(4), 8)
    ticks.tick(loaded(4, 10), at_rest(4))

    assert ticks.run(loaded(4, 100), at_rest(4), 8)[-1].to_replicas == 4


def test_a_user_who_moves_the_bounds_is_obeyed_at_once():
    above = Ticks(replace(POLICY, max_replicas=3)).tick(loaded(5, 100), at_rest(5))
    below = Ticks(replace(POLICY, min_replicas=7)).tick(loaded(5, 5), at_rest(5))

    assert (above.to_replicas, above.reason) == (3, ScalingReason.ABOVE_MAXIMUM)
    assert (below.to_replicas, below.reason) == (7, ScalingReason.BELOW_MINIMUM)


def test_a_replica_that_cannot_be_scheduled_stops_growth_instead_of_repeating_it():
    state = ReplicaState(spec_replicas=6, ready=4, pending=2, unschedulable=2)

    flooded = replace(loaded(4, 100), queued_tokens=900_000)
    decisions = Ticks(POLICY).run(flooded, state, 600)

    assert {(item.to_replicas, item.limit) for item in decisions} == {(6, LimitingRule.CAPACITY_PENDING)}


def test_capacity_that_comes_back_is_used_at_once():
    ticks = Ticks(POLICY)
    stuck = ReplicaState(spec_replicas=5, ready=4, pending=1, unschedulable=1)
    flooded = replace(loaded(4, 100), queued_tokens=900_000)
    ticks.run(flooded, stuck, 60)

    decision = ticks.tick(flooded, ReplicaState(spec_replicas=5, ready=4, pending=1))

    assert decision.to_replicas > 5
