"""Capacity misses: when recomputed tokens pay for a replica."""

from dataclasses import replace

import pytest

from warmfleet_operator.scaling.decision import ScalingReason
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    PREFILL_RATE,
    Ticks,
    at_rest,
    fleet,
    last,
    misses,
    signals,
)

RECOMPUTED = round(30 * 0.6 * PREFILL_RATE)
NEAR = {"capacity": RECOMPUTED * 2, "capacity_depths": (RECOMPUTED * 2,)}


def regretful(count=2, **kinds):
    kinds = kinds or NEAR
    full = fleet(count, evictable_tokens=90_000, pinned_tokens=5000)
    return signals(full, traffic=misses(RECOMPUTED * 3, cached=RECOMPUTED, **kinds))


def test_capacity_misses_that_last_add_one_replica():
    ticks = Ticks(POLICY)
    early = ticks.run(regretful(), at_rest(2), 60)
    decision = ticks.run(regretful(), at_rest(2), 80)[-1]

    assert {item.to_replicas for item in early} == {2}
    assert (decision.to_replicas, decision.reason) == (3, ScalingReason.CAPACITY_MISSES)


@pytest.mark.parametrize("kind", ["compulsory", "lost", "rollout", "placement"])
def test_no_other_kind_of_miss_adds_a_replica(kind):
    decision = last(POLICY, regretful(**{kind: RECOMPUTED * 2}), at_rest(2), 200)

    assert decision.inputs.misses_replicas == 0


@pytest.mark.parametrize(
    "view",
    [
        signals(fleet(2, evictable_tokens=20_000), traffic=misses(RECOMPUTED * 3, **NEAR)),
        signals(
            fleet(2, evictable_tokens=95_000), traffic=misses(3000, capacity=2000, capacity_depths=(2000,))
        ),
    ],
    ids=["caches are not full", "recomputing takes a fiftieth of a replica"],
)
def test_capacity_misses_that_a_replica_does_not_pay_for_add_none(view):
    assert last(POLICY, view, at_rest(2), 200).inputs.misses_replicas == 0


@pytest.mark.parametrize(
    ("depths", "replicas"),
    [
        pytest.param((0, 0, 0, 0, 0, RECOMPUTED * 2), 3, id="half a cache: one of two more"),
        pytest.param((0, 0, 0, 0, 0, 0, RECOMPUTED * 4), 3, id="a cache each: both of two more, together"),
        pytest.param((0, 0, 0, 0, 0, 0, RECOMPUTED), 2, id="a cache each, worth less than two replicas"),
        pytest.param((), 2, id="deeper than any, or not known"),
    ],
)
def test_only_what_a_larger_fleet_would_have_kept_counts(depths, replicas):
    view = regretful(capacity=RECOMPUTED * 4, capacity_depths=depths)

    decision = last(POLICY, view, at_rest(2), 200)

    assert decision.to_replicas == replicas


def test_capacity_misses_add_nothing_for_five_minutes_after_a_shrink():
    ticks = Ticks(POLICY)
    ticks.run(regretful(3), at_rest(3), 20)

    decisions = ticks.run(regretful(), at_rest(2), 310)

    grown = [index for index, item in enumerate(decisions) if item.inputs.misses_replicas]
    assert grown
    assert grown[0] == 300 / 2


def test_disabled_misses_are_only_counted():
    decision = last(replace(POLICY, capacity_misses_enabled=False), regretful(), at_rest(2), 200)

    assert decision.inputs.capacity_miss_percent == 66
    assert decision.inputs.misses_replicas == 0
