"""Capacity misses: when recomputed tokens pay for a replica."""

from dataclasses import replace

import pytest
from msgspec import structs

from warmfleet_operator.scaling.decision import ReplicaState, ScalingReason
from warmfleet_operator.scaling.policy import LatencyGoal
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    PREFILL_RATE,
    WATCHED,
    Ticks,
    at_rest,
    fleet,
    last,
    misses,
    signals,
)

RECOMPUTED = round(30 * 0.6 * PREFILL_RATE)
WITH_TARGET = replace(POLICY, first_token=LatencyGoal(95, 10_000))
"""Recomputation within the target costs compute alone."""
NEAR = {"capacity": RECOMPUTED * 2, "capacity_depths": (RECOMPUTED * 2,)}


def with_requests(view, requests=100):
    return replace(view, traffic=replace(view.traffic, requests=requests))


def regretful(count=2, **kinds):
    kinds = kinds or NEAR
    full = fleet(count, evictable_tokens=90_000, pinned_tokens=5000)
    return with_requests(signals(full, traffic=misses(RECOMPUTED * 3, cached=RECOMPUTED, **kinds)))


def low_rate(prompt_tokens=3000, count=2, cached=0, **kinds):
    """Full caches, of whose replicas the prompts take a hundredth."""
    full = fleet(count, evictable_tokens=95_000)
    return with_requests(signals(full, traffic=misses(prompt_tokens, cached=cached, **kinds)))


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
        with_requests(signals(fleet(2, evictable_tokens=20_000), traffic=misses(RECOMPUTED * 3, **NEAR))),
        low_rate(capacity=2000, capacity_depths=(2000,)),
    ],
    ids=["caches are not full", "recomputing takes a fiftieth of a replica"],
)
def test_capacity_misses_that_a_replica_does_not_pay_for_add_none(view):
    assert last(WITH_TARGET, view, at_rest(2), 200).inputs.misses_replicas == 0


@pytest.mark.parametrize(
    ("spared", "replicas"),
    [
        pytest.param({"capacity": 600, "capacity_depths": (150,)}, 3, id="a tenth of a replica's prompts"),
        pytest.param({"capacity": 600, "capacity_depths": (149,)}, 2, id="less than that"),
        pytest.param({"capacity": 299, "capacity_depths": (299,)}, 2, id="less than a tenth was evicted"),
        pytest.param({"compulsory": 3000}, 2, id="no prompt was sent before"),
        pytest.param({"lost": 3000}, 2, id="a replica went"),
    ],
)
def test_without_a_target_for_the_first_token_the_percentage_is_the_price_at_any_rate(spared, replicas):
    decision = last(POLICY, low_rate(**spared), at_rest(2), 200)

    assert decision.to_replicas == replicas


def test_misses_count_in_the_mean_so_that_half_a_minute_without_one_delays_nothing():
    ticks = Ticks(POLICY)
    often = low_rate(capacity=1500, capacity_depths=(1500,))

    for view in (often, low_rate(cached=3000), often):
        decision = ticks.run(view, at_rest(2), 50)[-1]

    assert decision.to_replicas == 3


def test_of_a_few_requests_nothing_follows():
    view = low_rate(capacity=1500, capacity_depths=(1500,))

    assert last(POLICY, with_requests(view, 2), at_rest(2), 200).to_replicas == 2
    assert last(POLICY, with_requests(view, 3), at_rest(2), 200).to_replicas == 3


def test_while_a_replica_starts_no_other_is_added_and_it_is_filled_first():
    ticks = Ticks(POLICY)
    view = low_rate(capacity=1500, capacity_depths=(1500,))
    assert ticks.run(view, at_rest(2), 200)[-1].to_replicas == 3

    starting = ticks.run(view, ReplicaState(spec_replicas=3, ready=2, pending=1), 400)
    ready = ticks.run(low_rate(count=3, capacity=1500, capacity_depths=(1500,)), at_rest(3), 130)

    assert {item.to_replicas for item in starting} == {3}
    assert {item.to_replicas for item in ready[:60]} == {3}
    assert ready[-1].to_replicas == 4


def test_what_a_tick_does_not_know_ends_nothing_and_counts_as_nothing():
    ticks = Ticks(POLICY)
    view = low_rate(capacity=1500, capacity_depths=(1500,))
    ticks.run(view, at_rest(2), 100)
    ticks.run(replace(view, missing_routers=1), at_rest(2), 10)

    assert ticks.run(view, at_rest(2), 20)[-1].to_replicas == 3


def test_without_traffic_or_speed_nothing_is_worth_a_replica():
    unmeasured = low_rate(capacity=3000, capacity_depths=(3000,))
    slow = tuple(structs.replace(one, prefill_tokens_per_second=0.0) for one in unmeasured.replicas)

    assert last(POLICY, low_rate(0), at_rest(2), 200).to_replicas == 2
    assert last(WITH_TARGET, replace(unmeasured, replicas=slow), at_rest(2), 200).to_replicas == 2
    assert last(POLICY, replace(unmeasured, replicas=()), at_rest(2), 200).to_replicas == 2


def after_growth(ticks):
    """The signals of a fleet that grew for capacity misses to three replicas, which spare all of them."""
    missed = low_rate(30_000, capacity=30_000, capacity_depths=(30_000,))
    assert ticks.run(missed, at_rest(2), 200)[-1].to_replicas == 3
    return low_rate(30_000, count=3, cached=30_000)


def test_a_growth_that_spares_what_it_grew_for_is_kept_for_an_hour_at_the_same_rate_of_requests():
    ticks = Ticks(POLICY)
    hits = after_growth(ticks)

    decisions = ticks.run(hits, at_rest(3), 3900)

    shrunk = [2 * tick for tick, item in enumerate(decisions) if item.to_replicas < 3]
    assert shrunk
    assert shrunk[0] == pytest.approx(3600 + POLICY.down_stabilization_seconds, abs=60)


def test_a_growth_for_the_cache_is_not_kept_for_a_lower_rate_of_requests():
    ticks = Ticks(POLICY)
    fewer = with_requests(after_growth(ticks), 20)

    assert ticks.run(fewer, at_rest(3), WATCHED)[-1].to_replicas == 2


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

    decision = last(WITH_TARGET, view, at_rest(2), 200)

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
