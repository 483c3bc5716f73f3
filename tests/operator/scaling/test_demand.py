"""Demand: what adds a replica, what counts as supply, and what is counted once."""

from dataclasses import replace

import pytest

from warmfleet_contracts.cache.fleet_totals import MissTokens
from warmfleet_operator.scaling.decision import ReplicaState, ScalingReason
from warmfleet_operator.scaling.signals import Traffic
from warmfleet_testing.resources.scaling_signals import (
    CAPACITY_TOKENS,
    POLICY,
    PREFILL_RATE,
    SUPPLY_TOKENS,
    Ticks,
    at_rest,
    fleet,
    last,
    loaded,
    misses,
    signals,
)


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


def test_refused_requests_would_take_what_the_answered_ones_take_per_token():
    """A fleet that computes nine tenths of its time and refuses half as much again needs the half, too."""
    answered = Traffic(seconds=30.0, prompt_tokens=round(30 * 1.8 * PREFILL_RATE), requests=100)
    refusing = replace(answered, refused_requests=50, refused_tokens=answered.prompt_tokens // 2)

    seen = last(POLICY, signals(fleet(2), traffic=refusing), at_rest(2), seconds=30)
    held = last(POLICY, replace(loaded(2, 80), traffic=refusing), at_rest(2), seconds=30)

    assert seen.inputs.demand_compute_permille == 2700
    assert seen.recommendations["compute"] == seen.to_replicas == 4
    assert held.inputs.demand_tokens == round(2 * 0.8 * SUPPLY_TOKENS * 1.5)


@pytest.mark.parametrize("times", [1, 2, 1000])
def test_refused_requests_at_most_double_a_demand_however_often_they_are_sent(times):
    tokens = round(30 * 1.8 * PREFILL_RATE)
    traffic = Traffic(
        seconds=30.0, prompt_tokens=tokens, refused_requests=times, refused_tokens=times * tokens
    )

    decision = last(POLICY, signals(fleet(2), traffic=traffic), at_rest(2), seconds=30)

    assert decision.inputs.demand_compute_permille == 3600


def test_refused_requests_add_nothing_where_none_was_answered():
    """What they would take is not known, and what waits is a demand in any case."""
    traffic = Traffic(seconds=30.0, refused_requests=100, refused_tokens=10**9)

    decision = last(POLICY, signals(fleet(2), traffic=traffic), at_rest(2), seconds=30)

    assert decision.to_replicas == 2
    assert (decision.inputs.demand_tokens, decision.inputs.demand_compute_permille) == (0, 0)
    assert decision.inputs.idle_seconds == -1


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


def test_ready_replicas_have_computed_no_more_than_their_time_however_slow_they_report_to_be():
    """What was answered was computed by them: a speed that contradicts it grows the fleet once, not again."""
    slow = fleet(1, prefill_tokens_per_second=PREFILL_RATE / 1000, pinned_tokens=100)
    view = signals(slow, traffic=misses(round(15 * PREFILL_RATE), compulsory=round(15 * PREFILL_RATE)))
    ticks, replicas = Ticks(POLICY), 1

    for _ in range(100):
        state = ReplicaState(spec_replicas=replicas, ready=1, pending=replicas - 1)
        replicas = ticks.tick(view, state).to_replicas

    assert replicas == 2


def test_the_price_of_a_miss_kind_is_never_added_to_demand_twice():
    """Misses are part of the prompt tokens that were computed, not a demand beside them."""
    traffic = Traffic(seconds=30.0, prompt_tokens=30_000, misses=MissTokens(compulsory=30_000))

    assert last(POLICY, signals(fleet(1), traffic=traffic), at_rest(1)).inputs.demand_compute_permille == 100
