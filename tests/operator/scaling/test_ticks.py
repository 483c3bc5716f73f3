"""From tick to tick: clocks that jump, restarts of the operator, and no reversal at constant load."""

from dataclasses import replace

import pytest

from warmfleet_operator.scaling.decision import ReplicaState, ScalingReason
from warmfleet_operator.scaling.limits import growth_limit
from warmfleet_operator.scaling.memory import MAX_GROWTHS, ScalingMemory
from warmfleet_operator.scaling.signals import FleetSignals
from warmfleet_operator.scaling.ticks import ticked
from warmfleet_testing.resources.scaling_signals import (
    CAPACITY_TOKENS,
    POLICY,
    SUPPLY_TOKENS,
    Ticks,
    at_rest,
    fleet,
    loaded,
    signals,
)


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_clock_that_is_an_hour_off_shrinks_nothing(seconds):
    ticks = Ticks(POLICY)
    ticks.run(loaded(4, 5), at_rest(4), 290)
    ticks.now_seconds += seconds

    decisions = ticks.run(loaded(4, 5), at_rest(4), 290)

    assert {decision.to_replicas for decision in decisions} == {4}


def test_a_restarted_operator_wants_the_same_number_and_shrinks_nothing_it_has_not_observed():
    before = Ticks(POLICY)
    grown = before.run(loaded(4, 100), at_rest(4), 60)[-1]

    after = Ticks(POLICY)
    again = after.run(loaded(4, 100), at_rest(4), 12)[-1]
    idle = Ticks(POLICY).run(loaded(5, 2), at_rest(5), 298)

    assert again.to_replicas == grown.to_replicas == 5
    assert {decision.to_replicas for decision in idle} == {5}


def test_no_reversal_within_a_day_of_constant_load():
    for percent in (5, 30, 50, 64, 66, 80, 86, 99):
        ticks, replicas = Ticks(POLICY), 4
        directions = set()
        total = 4 * SUPPLY_TOKENS * percent // 100
        for _ in range(12 * 3600 // 2):
            view = signals(fleet(replicas, pinned_tokens=min(CAPACITY_TOKENS, total // replicas)))
            decision = ticks.tick(view, at_rest(replicas))
            if decision.to_replicas != replicas:
                directions.add(decision.to_replicas > replicas)
            replicas = decision.to_replicas
            if ticks.now_seconds > 3600 and decision.reason is ScalingReason.STEADY:
                break
        assert len(directions) <= 1, percent


def test_a_growth_in_many_steps_keeps_to_the_rate_of_a_long_period():
    policy = replace(POLICY, up_replicas=40, up_percent=1, up_period_seconds=3600.0)
    memory, replicas, first = ScalingMemory(), 10, 10
    for second in range(0, 3590, 2):
        memory = ticked(policy, memory, FleetSignals(), ReplicaState(replicas, replicas), float(second))
        replicas += int(second > 10 and growth_limit(policy, memory.growths, replicas) > replicas)

    assert replicas == first + 40
    assert len(memory.growths) <= MAX_GROWTHS


def test_what_was_there_before_the_last_shrinks_is_known_until_the_next_ones():
    memory, seen = ScalingMemory(), []
    for now, replicas in enumerate((6, 6, 5, 4, 4, 5, 7, 6, 6, 5)):
        state = ReplicaState(replicas, ready=replicas)
        memory = ticked(POLICY, memory, signals(fleet(replicas)), state, 2.0 * now)
        seen.append(memory.shrunk_from)

    assert seen == [0, 0, 6, 6, 6, 6, 6, 7, 7, 7]


def test_a_shrink_after_a_pause_of_the_operator_follows_none_of_before():
    memory = ScalingMemory()
    for now, replicas in ((0.0, 9), (2.0, 8), (4.0, 9), (1000.0, 9), (1002.0, 7)):
        state = ReplicaState(replicas, ready=replicas)
        memory = ticked(POLICY, memory, signals(fleet(replicas)), state, now)

    assert memory.shrunk_from == 9
