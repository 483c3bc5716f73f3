"""Decisions tick by tick: what adds a replica, what removes one, and what does neither."""

from dataclasses import replace

import pytest

from warmfleet_contracts.cache.fleet_totals import MissTokens
from warmfleet_operator.scaling.decision import LimitingRule, ReplicaState, ScalingReason
from warmfleet_operator.scaling.policy import AutoscalingPolicy, LatencyGoal
from warmfleet_operator.scaling.signals import Traffic
from warmfleet_testing.resources.scaling_signals import (
    CAPACITY_TOKENS,
    PREFILL_RATE,
    SUPPLY_TOKENS,
    Ticks,
    at_rest,
    fleet,
    latencies,
    misses,
    replica,
    signals,
)

POLICY = AutoscalingPolicy(min_replicas=1, max_replicas=20)
FULL_MINUTES = 400.0
"""Longer than the time of stabilization."""


def last(policy, view, state, seconds=FULL_MINUTES):
    return Ticks(policy).run(view, state, seconds)[-1]


def loaded(count, percent, **fields):
    """Replicas whose live sequences hold this percent of their supply."""
    return signals(fleet(count, pinned_tokens=SUPPLY_TOKENS * percent // 100, **fields))


# Demand.


def test_live_tokens_above_the_upper_target_add_the_replicas_that_hold_them():
    decision = last(POLICY, loaded(4, 100), at_rest(4), seconds=30)

    assert (decision.from_replicas, decision.to_replicas) == (4, 5)
    assert decision.reason is ScalingReason.DEMAND_ABOVE_SUPPLY
    assert decision.recommendations["tokens"] == 5
    assert decision.inputs.demand_tokens == 4 * SUPPLY_TOKENS


@pytest.mark.parametrize("percent", [60, 70, 84])
def test_between_the_targets_nothing_changes(percent):
    # 60 % of four is 80 % of three: above the target for a shrink.
    decision = last(POLICY, loaded(4, percent), at_rest(4))

    assert decision.to_replicas == 4
    assert decision.reason is ScalingReason.STEADY


def test_a_full_cache_of_blocks_that_no_sequence_holds_is_free_capacity():
    decision = last(POLICY, signals(fleet(4, evictable_tokens=CAPACITY_TOKENS)), at_rest(4))

    assert decision.to_replicas == 3
    assert decision.inputs.demand_tokens == 0


def test_what_waits_at_routers_counts_without_the_part_that_will_hit_the_cache():
    view = signals(fleet(1), queued_tokens=100_000, queued_requests=4, traffic=misses(1000, cached=750))

    assert last(POLICY, view, at_rest(1)).inputs.demand_tokens == 25_000


def test_sequences_beyond_the_seats_add_replicas_however_short_they_are():
    view = signals(fleet(2, running_sequences=64, waiting_sequences=20, pinned_tokens=1000))

    decision = last(POLICY, view, at_rest(2), seconds=30)

    assert decision.recommendations["sequences"] == 4
    assert decision.to_replicas == 4


def test_prompt_tokens_to_compute_add_replicas_where_memory_is_empty():
    traffic = Traffic(seconds=30.0, prompt_tokens=round(30 * 1.9 * PREFILL_RATE))
    decision = last(POLICY, signals(fleet(2), traffic=traffic), at_rest(2), seconds=30)

    assert decision.inputs.demand_compute_permille == 1900
    assert decision.to_replicas == 3


def test_pending_replicas_count_as_supply():
    """No cascade: the same demand does not add replicas again while those it added are starting."""
    ticks = Ticks(POLICY)
    ticks.run(loaded(4, 100), at_rest(4), 20)

    decisions = ticks.run(loaded(4, 100), ReplicaState(spec_replicas=5, ready=4, pending=1), 120)

    assert {decision.to_replicas for decision in decisions} == {5}


def test_ready_replicas_without_a_report_count_as_the_mean_for_growth():
    view = replace(loaded(3, 100), missing_replicas=1)

    decision = last(POLICY, view, at_rest(4), seconds=30)

    assert decision.inputs.demand_tokens == 4 * SUPPLY_TOKENS
    assert decision.to_replicas == 5


def test_a_replica_whose_queue_waits_for_memory_teaches_what_it_takes():
    ticks = Ticks(POLICY)
    stuck = {"pinned_tokens": 60_000, "running_sequences": 8, "waiting_sequences": 3}

    ticks.run(signals(fleet(2, **stuck)), at_rest(2), 20)
    decision = ticks.tick(loaded(2, 50), at_rest(2))

    assert decision.inputs.supply_tokens == 60_000


def test_a_request_that_waits_for_the_next_step_teaches_nothing():
    ticks = Ticks(POLICY)
    arriving = {"pinned_tokens": 900, "running_sequences": 1, "waiting_sequences": 1}

    (*_, decision) = ticks.run(signals(fleet(2, **arriving)), at_rest(2), 20)

    assert decision.inputs.supply_tokens == SUPPLY_TOKENS


def test_replicas_that_compute_all_they_can_teach_their_speed():
    busy = fleet(2, queued_uncached_tokens=round(3 * PREFILL_RATE))
    traffic = Traffic(seconds=30.0, prompt_tokens=round(30 * 2 * 0.6 * PREFILL_RATE))

    decision = Ticks(POLICY).run(signals(busy, traffic=traffic), at_rest(2), 60)[-1]

    assert decision.inputs.supply_compute_permille == 600


# Latency.

TARGETED = replace(POLICY, first_token=LatencyGoal(percentile=95, target_milliseconds=1000))


def served(load_permille, milliseconds, count=4):
    """Replicas whose prompts take this load, and whose requests took so long."""
    prompts = round(30 * load_permille / 1000 * PREFILL_RATE)
    traffic = Traffic(seconds=30.0, prompt_tokens=prompts, requests=100)
    return signals(fleet(count), traffic=traffic, first_token=latencies(milliseconds))


def test_a_percentile_above_its_target_adds_replicas_below_the_targets_of_utilization():
    ticks = Ticks(TARGETED)
    ticks.run(served(800, 200), at_rest(4), 60)

    decision = ticks.run(served(3300, 3000), at_rest(4), 30)[-1]

    assert decision.reason is ScalingReason.LATENCY_ABOVE_TARGET
    assert decision.to_replicas > 4
    assert decision.inputs.first_token_ms > 1000


def test_a_target_that_no_number_of_replicas_meets_adds_none():
    ticks = Ticks(TARGETED)
    ticks.run(served(800, 1500), at_rest(4), 60)

    decisions = ticks.run(served(1200, 1600), at_rest(4), 60)

    assert {decision.to_replicas for decision in decisions} == {4}


def test_a_target_that_is_missed_at_low_load_adds_no_more_than_halve_the_load():
    """A percentile of few long prompts moves by itself: no number of replicas would seem enough."""
    decisions = {}
    for load_permille in (1900, 2600):
        ticks = Ticks(TARGETED)
        ticks.run(served(800, 200), at_rest(4), 60)
        decisions[load_permille] = ticks.run(served(load_permille, 30_000), at_rest(4), 60)

    assert {decision.to_replicas for decision in decisions[1900]} == {4}
    assert max(decision.to_replicas for decision in decisions[2600]) == 6


def test_a_backlog_that_is_gone_before_a_replica_is_ready_adds_none():
    ticks = Ticks(TARGETED)
    ticks.run(served(800, 200), at_rest(4), 60)

    short = replace(served(800, 200), queued_tokens=200_000, queued_requests=20)

    assert {item.to_replicas for item in ticks.run(short, at_rest(4), 20)} == {4}


def test_one_odd_tick_adds_nothing():
    ticks = Ticks(replace(TARGETED, up_stabilization_seconds=0.0))
    ticks.run(served(3000, 200), at_rest(4), 60)

    decision = ticks.tick(served(3000, 5000), at_rest(4))

    assert decision.to_replicas == 4


def test_prompts_that_wait_are_a_forecast_before_any_of_them_was_answered():
    waiting = replace(served(800, 200), queued_tokens=2_000_000, queued_requests=20)
    ticks = Ticks(TARGETED)
    ticks.run(served(800, 200), at_rest(4), 60)

    decision = ticks.run(waiting, at_rest(4), 20)[-1]

    assert decision.inputs.first_token_ms > 1000
    assert decision.recommendations["firstToken"] > 4


def test_a_shrink_must_leave_the_predicted_percentile_within_its_target():
    goal = replace(TARGETED, scale_up_percent=100, scale_down_percent=99)
    near = Ticks(goal)
    near.run(served(800, 200), at_rest(4), 60)

    held = near.run(served(2600, 700), at_rest(4), FULL_MINUTES)[-1]
    free = Ticks(goal).run(served(2600, 5), at_rest(4), FULL_MINUTES)[-1]

    assert held.to_replicas == 4
    assert free.to_replicas == 3


# Capacity misses.

RECOMPUTED = round(30 * 0.6 * PREFILL_RATE)


def regretful(count=2, **kinds):
    kinds = kinds or {"capacity": RECOMPUTED * 2}
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
        signals(fleet(2, evictable_tokens=20_000), traffic=misses(RECOMPUTED * 3, capacity=RECOMPUTED * 2)),
        signals(fleet(2, evictable_tokens=95_000), traffic=misses(3000, capacity=2000)),
    ],
    ids=["caches are not full", "recomputing takes a fiftieth of a replica"],
)
def test_capacity_misses_that_a_replica_does_not_pay_for_add_none(view):
    assert last(POLICY, view, at_rest(2), 200).inputs.misses_replicas == 0


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


# Limits.


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


def test_nothing_shrinks_within_a_minute_after_a_panic():
    policy = replace(POLICY, down_stabilization_seconds=0.0, down_period_seconds=1.0)
    ticks = Ticks(policy)
    ticks.tick(replace(loaded(4, 100), queued_tokens=900_000), at_rest(4))

    after = [ticks.tick(loaded(4, 5), at_rest(4)) for _ in range(32)]

    assert {decision.limit for decision in after[:28]} == {LimitingRule.PANIC}
    assert after[-1].to_replicas == 3


def test_a_shrink_takes_one_replica_and_names_the_one_that_holds_least_of_value():
    values = {"pod-0": 900.0, "pod-1": 3.0, "pod-2": 40.0, "pod-3": 500.0}
    pods = [replica(uid, unique_value_tokens_per_second=value) for uid, value in values.items()]

    decision = last(POLICY, signals(pods), at_rest(4))

    assert (decision.from_replicas, decision.to_replicas) == (4, 3)
    assert decision.reason is ScalingReason.DEMAND_BELOW_SUPPLY
    assert decision.limit is LimitingRule.ONE_AT_A_TIME
    assert decision.victim == "pod-1"


def test_of_equal_values_the_replica_with_less_to_do_goes():
    pods = [replica("a", pinned_tokens=900), replica("b", pinned_tokens=30), replica("c", pinned_tokens=700)]

    assert last(POLICY, signals(pods), at_rest(3)).victim == "b"


def test_a_replica_that_holds_more_than_its_idle_time_saves_stays():
    held = {"unique_blocks": 10**7, "unique_value_tokens_per_second": 0.6 * PREFILL_RATE}
    less = {**held, "unique_value_tokens_per_second": 0.4 * PREFILL_RATE}

    kept, given = (
        last(POLICY, signals(fleet(3, **held)), at_rest(3)),
        last(POLICY, signals(fleet(3, **less)), at_rest(3)),
    )

    assert (kept.to_replicas, kept.limit) == (3, LimitingRule.CACHE_VALUE)
    assert given.to_replicas == 2


def test_the_highest_need_of_five_minutes_keeps_its_replicas():
    ticks = Ticks(POLICY)
    ticks.run(loaded(4, 10), at_rest(4), 280)
    ticks.tick(loaded(4, 70), at_rest(4))

    decisions = ticks.run(loaded(4, 10), at_rest(4), 320)

    assert {item.to_replicas for item in decisions[:148]} == {4}
    assert decisions[-1].to_replicas == 3


def test_the_next_replica_goes_a_minute_after_the_last_change_at_the_earliest():
    ticks = Ticks(POLICY)
    ticks.run(loaded(4, 5), at_rest(4), FULL_MINUTES)

    decisions = ticks.run(loaded(3, 5), at_rest(3), 62)

    assert {item.limit for item in decisions[:30]} == {LimitingRule.PERIOD}
    assert decisions[-1].to_replicas == 2


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        (ReplicaState(4, 4, in_rollout=True), LimitingRule.ROLLOUT),
        (ReplicaState(4, 3, pending=1), LimitingRule.NOT_READY),
        (ReplicaState(4, 3), LimitingRule.NOT_READY),
        (ReplicaState(4, 5), LimitingRule.NOT_READY),
        (ReplicaState(4, 4, stopping=1), LimitingRule.STOPPING),
        (ReplicaState(4, 3, pending=1, unschedulable=1), LimitingRule.CAPACITY_PENDING),
    ],
)
def test_a_fleet_that_is_not_at_rest_keeps_its_replicas(state, limit):
    decision = last(POLICY, loaded(state.ready, 2), state)

    assert (decision.to_replicas, decision.limit) == (4, limit)


def test_a_user_who_moves_the_bounds_is_obeyed_at_once():
    above = Ticks(replace(POLICY, max_replicas=3)).tick(loaded(5, 100), at_rest(5))
    below = Ticks(replace(POLICY, min_replicas=7)).tick(loaded(5, 5), at_rest(5))

    assert (above.to_replicas, above.reason) == (3, ScalingReason.ABOVE_MAXIMUM)
    assert (below.to_replicas, below.reason) == (7, ScalingReason.BELOW_MINIMUM)


# To zero and from zero.

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


# Faults.


def test_a_replica_that_stops_reporting_is_no_reason_to_shrink_or_to_grow():
    view = replace(loaded(3, 60), missing_replicas=1)

    decision = last(POLICY, view, at_rest(4))

    assert decision.to_replicas == 4
    idle = last(POLICY, replace(loaded(3, 2), missing_replicas=1), at_rest(4))
    assert (idle.to_replicas, idle.limit) == (4, LimitingRule.SIGNALS_MISSING)


@pytest.mark.parametrize(
    "view",
    [
        signals(missing_replicas=4),
        signals(missing_replicas=4, routers=0, missing_routers=2),
        signals(routers=0),
    ],
    ids=["no replica reports", "all routers are gone", "there is no router"],
)
def test_without_any_signal_the_number_stays(view):
    ticks = Ticks(POLICY)
    ticks.run(loaded(4, 100), at_rest(4), 60)

    decisions = ticks.run(view, at_rest(4), 1200)

    assert {(item.to_replicas, item.limit) for item in decisions} == {(4, LimitingRule.SIGNALS_MISSING)}


def test_one_of_two_routers_gone_forbids_a_shrink_and_allows_growth():
    idle = last(POLICY, replace(loaded(4, 2), missing_routers=1), at_rest(4))
    busy = last(POLICY, replace(loaded(4, 100), missing_routers=1), at_rest(4), 30)

    assert (idle.to_replicas, idle.limit) == (4, LimitingRule.SIGNALS_MISSING)
    assert busy.to_replicas == 5


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


def test_the_price_of_a_miss_kind_is_never_added_to_demand_twice():
    """Misses are part of the prompt tokens that were computed, not a demand beside them."""
    traffic = Traffic(seconds=30.0, prompt_tokens=30_000, misses=MissTokens(compulsory=30_000))

    assert last(POLICY, signals(fleet(1), traffic=traffic), at_rest(1)).inputs.demand_compute_permille == 100
