"""Latency targets: which percentiles add replicas, and which no number of replicas would mend."""

from dataclasses import replace

import pytest

from warmfleet_contracts.cache.fleet_totals import LatencyHistogram
from warmfleet_operator.scaling.decision import ScalingReason
from warmfleet_operator.scaling.policy import LatencyGoal
from warmfleet_operator.scaling.signals import Traffic
from warmfleet_testing.resources.scaling_signals import (
    POLICY,
    PREFILL_RATE,
    WATCHED,
    Ticks,
    at_rest,
    fleet,
    last,
    latencies,
    signals,
)

TARGETED = replace(POLICY, first_token=LatencyGoal(percentile=95, target_milliseconds=1000))


def served(load_permille, milliseconds, count=4, *, refused=0, queued=0, waiting=0):
    """Replicas whose prompts take this load, and whose requests took so long."""
    prompts = round(30 * load_permille / 1000 * PREFILL_RATE)
    # So many requests that chance does not move their load.
    traffic = Traffic(seconds=30.0, prompt_tokens=prompts, requests=1_000_000, refused_requests=refused)
    return signals(
        fleet(count, waiting_sequences=waiting),
        traffic=traffic,
        first_token=latencies(milliseconds),
        queued_requests=queued,
    )


def with_late_requests(late, *, load_permille, seconds):
    """What four replicas become while so many of 100 requests take three seconds, and the others 200 ms."""
    counts, tail = latencies(200, 100 - late).counts, latencies(3000, late).counts
    mixed = LatencyHistogram((*counts, *tail[len(counts) :]))
    ticks = Ticks(TARGETED)
    ticks.run(served(800, 200), at_rest(4), 60)
    view = replace(served(load_permille, 200), first_token=mixed)
    return ticks.run(view, at_rest(4), seconds)[-1].to_replicas


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


def test_while_no_speed_is_measured_there_are_no_more_replicas_than_sequences():
    """Without a load to divide, one slow request after the other would grow the fleet to its maximum."""
    unmeasured = fleet(2, prefill_tokens_per_second=0.0, decode_tokens_per_second=0.0, running_sequences=3)
    view = signals(unmeasured, first_token=latencies(30_000))

    decisions = Ticks(TARGETED).run(view, at_rest(2), 60)
    assert max(decision.recommendations["firstToken"] for decision in decisions) == 6
    alone = replace(view, replicas=fleet(2, prefill_tokens_per_second=0.0))
    assert {decision.to_replicas for decision in Ticks(TARGETED).run(alone, at_rest(2), 60)} == {2}


def test_slow_requests_without_load_keep_no_replica_but_the_last():
    decision = last(TARGETED, served(0, 30_000), at_rest(4), WATCHED)

    assert decision.recommendations["firstToken"] == 1
    assert decision.to_replicas == 3


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


def test_as_many_late_requests_as_chance_brings_add_none():
    """Of 100 requests at the 95th percentile 5 may be late; 8 are by chance often, 15 are not."""
    wanted = {late: with_late_requests(late, load_permille=3300, seconds=30) for late in (8, 15)}

    assert {late: number > 4 for late, number in wanted.items()} == {8: False, 15: True}


def test_time_between_tokens_is_the_mean_of_each_answer():
    """Single gaps beside a prefill are long at any number of replicas."""
    goal = replace(POLICY, between_tokens=LatencyGoal(percentile=95, target_milliseconds=100))
    views = {
        "gaps": replace(served(3300, 50), inter_token=latencies(300), mean_inter_token=latencies(50)),
        "answers": replace(served(3300, 50), inter_token=latencies(50), mean_inter_token=latencies(300)),
    }
    grown = {name: Ticks(goal).run(view, at_rest(4), 30)[-1].to_replicas for name, view in views.items()}

    assert grown["gaps"] == 4
    assert grown["answers"] > 4


def test_a_shrink_must_leave_the_predicted_percentile_within_its_target():
    goal = replace(TARGETED, scale_up_percent=100, scale_down_percent=99)
    near = Ticks(goal)
    near.run(served(800, 200), at_rest(4), 60)

    held = near.run(served(2600, 700), at_rest(4), WATCHED)[-1]
    free = Ticks(goal).run(served(2600, 5), at_rest(4), WATCHED)[-1]

    assert held.to_replicas == 4
    assert free.to_replicas == 3


def test_as_many_late_requests_as_chance_brings_keep_no_replica():
    """What growth would not ask for is no need of a shrink either."""
    left = {late: with_late_requests(late, load_permille=1700, seconds=WATCHED) for late in (8, 15)}

    assert left == {8: 3, 15: 4}


def test_a_percentile_is_the_part_without_load_only_where_all_its_requests_met_low_load():
    """In its first seconds a fleet has computed little, under any load."""
    grown = {}
    for seconds in (20, 60):
        ticks = Ticks(TARGETED)
        ticks.run(served(800, 900), at_rest(4), seconds)
        grown[seconds] = ticks.run(served(3300, 1200), at_rest(4), 30)[-1].to_replicas

    assert grown[20] < grown[60]


@pytest.mark.parametrize(
    ("waits", "grows"),
    [({}, False), ({"refused": 3}, True), ({"queued": 2}, True), ({"waiting": 1}, True)],
    ids=["nothing", "refused", "queued", "waiting"],
)
def test_a_percentile_at_low_load_is_the_part_that_stays_only_while_nothing_waits(waits, grows):
    """What waits for memory or seats waits at low load, too, and more replicas have more of both."""
    ticks = Ticks(TARGETED)
    ticks.run(served(1900, 3000, **waits), at_rest(4), 120)

    decision = ticks.run(served(2600, 3000), at_rest(4), 30)[-1]

    assert (decision.to_replicas > 4) is grows
