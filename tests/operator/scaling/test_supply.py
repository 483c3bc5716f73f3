"""What one replica takes: it is learnt where work waits, and only there."""

import pytest

from warmfleet_operator.scaling.signals import Traffic
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    PREFILL_RATE,
    SUPPLY_TOKENS,
    Ticks,
    at_rest,
    fleet,
    loaded,
    replica,
    signals,
)

WAITING = {"pinned_tokens": 60_000, "running_sequences": 8, "waiting_sequences": 3}
STUCK = {**WAITING, "queued_uncached_tokens": 150_000}


def test_a_replica_whose_queue_waits_for_memory_teaches_what_it_takes():
    ticks = Ticks(POLICY)

    ticks.run(signals(fleet(2, **STUCK)), at_rest(2), 60)
    decision = ticks.tick(loaded(2, 50), at_rest(2))

    assert decision.inputs.supply_tokens == 60_000


def test_one_queue_that_waits_for_memory_for_less_than_a_minute_teaches_nothing():
    """A long prompt waits for the room that shorter ones would have had."""
    ticks = Ticks(POLICY)

    decisions = ticks.run(signals(fleet(2, **STUCK)), at_rest(2), 58)

    assert {one.inputs.supply_tokens for one in decisions} == {SUPPLY_TOKENS}


def test_what_queues_have_taught_of_memory_counts_for_an_hour():
    ticks = Ticks(POLICY)
    ticks.run(signals(fleet(2, **STUCK)), at_rest(2), 60)

    decisions = ticks.run(loaded(2, 50), at_rest(2), 3600)
    supplies = [one.inputs.supply_tokens for one in decisions]

    assert {*supplies[:1769]} == {60_000}, "the first of three samples is an hour old by then"
    assert {*supplies[1769:]} == {SUPPLY_TOKENS}
    again = ticks.run(signals(fleet(2, **STUCK)), at_rest(2), 58)
    assert {one.inputs.supply_tokens for one in again} == {SUPPLY_TOKENS}


@pytest.mark.parametrize(
    ("held", "supply"),
    [
        ((60_000, 90_000, 70_000), 70_000),
        ((90_000, 60_000, 70_000, 65_000), 67_500),
        ((90_000,) * 5 + (60_000,) * 10, 60_000),
        ((60_000,) * 5 + (90_000,) * 10, 90_000),
        ((99_000,) * 3, SUPPLY_TOKENS),
    ],
)
def test_the_median_of_the_last_ten_samples_is_what_a_replica_takes(held, supply):
    """A sample is the median of the replicas that wait."""
    ticks = Ticks(POLICY)
    for tokens in held:
        pods = [
            replica(uid, **{**STUCK, "pinned_tokens": tokens + more})
            for uid, more in (("a", 900), ("b", 0), ("c", -900))
        ]
        ticks.run(signals(pods), at_rest(3), 28)

    decision = ticks.tick(loaded(3, 50), at_rest(3))

    assert decision.inputs.supply_tokens == supply


def test_what_was_learnt_of_a_small_memory_is_half_of_a_larger_one_at_least():
    ticks = Ticks(POLICY)
    ticks.run(signals(fleet(2, **STUCK)), at_rest(2), 60)

    larger = ticks.tick(signals(fleet(2, capacity_tokens=200_000)), at_rest(2))

    assert larger.inputs.supply_tokens == 100_000


def test_a_pause_of_the_operator_forgets_no_supply():
    ticks = Ticks(POLICY)
    ticks.run(signals(fleet(2, **STUCK)), at_rest(2), 60)
    ticks.now_seconds += 2 * POLICY.gap_seconds

    assert ticks.tick(loaded(2, 50), at_rest(2)).inputs.supply_tokens == 60_000


def test_a_clock_that_is_set_back_leaves_no_supply_samples_of_the_future():
    ticks = Ticks(POLICY)
    ticks.run(signals(fleet(2, **STUCK)), at_rest(2), 60)
    ticks.now_seconds = 10.0

    decision = ticks.tick(loaded(2, 50), at_rest(2))

    assert decision.inputs.supply_tokens == SUPPLY_TOKENS


def test_a_request_that_waits_for_the_next_step_teaches_nothing():
    ticks = Ticks(POLICY)
    arriving = {"pinned_tokens": 900, "running_sequences": 1, "waiting_sequences": 1}

    (*_, decision) = ticks.run(signals(fleet(2, **arriving)), at_rest(2), 20)

    assert decision.inputs.supply_tokens == SUPPLY_TOKENS


def test_prompts_that_would_fit_wait_for_compute_and_teach_nothing_of_memory():
    ticks = Ticks(POLICY)
    computing = {**WAITING, "queued_uncached_tokens": 30_000}

    (*_, decision) = ticks.run(signals(fleet(2, **computing)), at_rest(2), 20)

    assert decision.inputs.supply_tokens == SUPPLY_TOKENS


@pytest.mark.parametrize("refused", [{}, {"refused_requests": 40, "refused_tokens": 60_000}])
def test_replicas_that_compute_all_they_can_teach_their_speed_and_not_what_is_refused(refused):
    busy = fleet(2, queued_uncached_tokens=round(3 * PREFILL_RATE))
    traffic = Traffic(seconds=30.0, prompt_tokens=round(30 * 2 * 0.6 * PREFILL_RATE), **refused)

    decision = Ticks(POLICY).run(signals(busy, traffic=traffic), at_rest(2), 60)[-1]

    assert decision.inputs.supply_compute_permille == 600
