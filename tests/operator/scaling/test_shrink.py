"""Shrinking: by one replica, which one, and what forbids it."""

from dataclasses import replace

import pytest

from warmfleet_operator.scaling.decision import LimitingRule, ReplicaState, ScalingDecision, ScalingReason
from warmfleet_operator.scaling.signals import FleetSignals, Traffic
from warmfleet_testing.resources.scaling_signals import (
    FULL_MINUTES,
    POLICY,
    PREFILL_RATE,
    TICK_SECONDS,
    WATCHED,
    Ticks,
    at_rest,
    fleet,
    last,
    loaded,
    replica,
    signals,
)


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


def test_a_load_of_few_requests_keeps_what_its_peaks_will_need_again():
    """The load of 20 requests at a time varies by a third, that of 20,000 hardly."""

    def after_half_an_hour(requests: int, loads: tuple[float, ...]) -> int:
        ticks, decision = Ticks(POLICY), None
        for _ in range(16):
            for load in loads:
                tokens = round(30 * load * PREFILL_RATE)
                traffic = Traffic(seconds=30.0, prompt_tokens=tokens, requests=requests)
                decision = ticks.run(signals(fleet(4), traffic=traffic), at_rest(4), 120 / len(loads))[-1]
        assert decision is not None
        return decision.to_replicas

    assert after_half_an_hour(20, (1.1, 2.1)) == 4
    assert after_half_an_hour(20_000, (1.6,)) == 3


def test_the_highest_need_of_five_minutes_keeps_its_replicas():
    ticks = Ticks(POLICY)
    ticks.run(loaded(4, 10), at_rest(4), 280)
    ticks.run(loaded(4, 70), at_rest(4), POLICY.up_stabilization_seconds)

    decisions = ticks.run(loaded(4, 10), at_rest(4), 320)

    assert {item.to_replicas for item in decisions[:148]} == {4}
    assert decisions[-1].to_replicas == 3


@pytest.mark.parametrize(
    ("up_seconds", "needed_seconds", "kept"),
    [(10.0, 8.0, False), (10.0, 10.0, True), (3600.0, 28.0, False), (3600.0, 30.0, True), (0.0, 0.0, True)],
)
def test_a_need_keeps_replicas_if_it_lasts_as_long_as_growth_has_to_be_asked_for(
    up_seconds, needed_seconds, kept
):
    """Half a minute at most: a policy that grows late does not shrink sooner for it."""
    ticks = Ticks(replace(POLICY, up_stabilization_seconds=up_seconds))
    ticks.run(loaded(4, 10), at_rest(4), 280)
    ticks.run(loaded(4, 70), at_rest(4), needed_seconds)

    after = ticks.run(loaded(4, 10), at_rest(4), 60)[-1]

    assert (after.inputs.stable_need == 5) is kept


@pytest.mark.parametrize("up_seconds", [10.0, 3600.0])
@pytest.mark.parametrize("seconds", [0.0, 8.0])
def test_no_replica_goes_in_a_moment_in_which_it_is_needed(up_seconds, seconds):
    """Of four long sequences chance explains any rise."""
    traffic = Traffic(seconds=30.0, prompt_tokens=30_000, requests=4)
    calm = signals(fleet(4, pinned_tokens=5_000, running_sequences=1), traffic=traffic)
    full = signals(
        fleet(4, pinned_tokens=93_000, running_sequences=1),
        traffic=traffic,
        queued_requests=1,
        queued_tokens=90_000,
    )
    policy = replace(POLICY, up_stabilization_seconds=up_seconds)
    due = next(n for n, one in enumerate(Ticks(policy).run(calm, at_rest(4), 1900)) if one.to_replicas == 3)
    ticks = Ticks(policy)
    ticks.run(calm, at_rest(4), (due - 1) * TICK_SECONDS - seconds)

    needed = ticks.run(full, at_rest(4), seconds + TICK_SECONDS)

    assert {one.inputs.rising for one in needed} == {0}
    assert min(one.to_replicas for one in needed) == 4


def test_a_router_that_does_not_answer_for_a_moment_keeps_replicas_for_five_minutes():
    """What it queued, or had counted, may be known only later."""
    ticks = Ticks(POLICY)
    ticks.run(loaded(4, 10), at_rest(4), 280)
    ticks.tick(replace(loaded(4, 10), missing_routers=1), at_rest(4))

    kept = ticks.run(loaded(4, 10), at_rest(4), 298)

    assert {one.inputs.stable_need for one in kept} == {4}
    assert ticks.run(loaded(4, 10), at_rest(4), 20)[-1].to_replicas == 3


@pytest.mark.parametrize(("missing_seconds", "kept"), [(8.0, False), (10.0, True)])
def test_reports_that_are_missing_keep_replicas_for_as_long_as_a_need_that_lasts(missing_seconds, kept):
    """Those of a new pod are missing for a moment; the next ones show what it holds."""
    ticks = Ticks(POLICY)
    ticks.run(loaded(4, 10), at_rest(4), 280)
    missing = ticks.run(replace(loaded(1, 10), missing_replicas=3), at_rest(4), missing_seconds)

    after = ticks.run(loaded(4, 10), at_rest(4), 60)[-1]

    assert {item.to_replicas for item in missing} == {4}
    assert (after.inputs.stable_need >= 4) is kept


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
        (ReplicaState(4, 2, pending=2, unschedulable=1), LimitingRule.NOT_READY),
    ],
)
def test_a_fleet_that_is_not_at_rest_keeps_its_replicas(state, limit):
    decision = last(POLICY, loaded(state.ready, 2), state)

    assert (decision.to_replicas, decision.limit) == (4, limit)


def test_a_replica_without_a_place_goes_first_when_demand_fell_and_costs_no_cache():
    priceless = {"unique_blocks": 10**7, "unique_value_tokens_per_second": 0.6 * PREFILL_RATE}
    stuck = ReplicaState(4, 3, pending=1, unschedulable=1)

    decision = last(POLICY, signals(fleet(3, **priceless)), stuck)
    needed = last(POLICY, loaded(3, 85), stuck)

    assert (decision.to_replicas, decision.victim) == (3, None)
    assert (needed.to_replicas, needed.limit) == (4, LimitingRule.NONE)


def test_the_first_replica_goes_when_the_load_was_watched_for_ten_minutes():
    """A calm beginning shows nothing of bursts, but of a fleet without requests nothing more will be seen."""
    traffic = Traffic(seconds=30.0, prompt_tokens=round(30 * PREFILL_RATE), requests=20_000)
    busy = Ticks(POLICY).run(signals(fleet(4), traffic=traffic), at_rest(4), WATCHED)
    idle = Ticks(POLICY).run(signals(fleet(4)), at_rest(4), WATCHED)

    def first_shrink_seconds(decisions: list[ScalingDecision]) -> float:
        return next(number for number, one in enumerate(decisions) if one.to_replicas < 4) * TICK_SECONDS

    assert first_shrink_seconds(busy) == 2 * POLICY.down_stabilization_seconds == 600
    assert first_shrink_seconds(idle) == POLICY.down_stabilization_seconds == 300
    assert {one.limit for one in busy[160:300]} == {LimitingRule.STABILIZATION}


@pytest.mark.parametrize(("window_seconds", "first_seconds"), [(1200.0, 1800), (2400.0, 2400)])
def test_half_an_hour_is_enough_with_windows_of_half_of_it_and_more(window_seconds, first_seconds):
    policy = replace(POLICY, down_stabilization_seconds=window_seconds)
    traffic = Traffic(seconds=30.0, prompt_tokens=round(30 * PREFILL_RATE), requests=20_000)

    decisions = Ticks(policy).run(signals(fleet(4), traffic=traffic), at_rest(4), 2500)

    assert next(n for n, one in enumerate(decisions) if one.to_replicas < 4) * TICK_SECONDS == first_seconds


def test_time_in_which_signals_were_missing_does_not_count_as_watched():
    traffic = Traffic(seconds=30.0, prompt_tokens=round(30 * PREFILL_RATE), requests=20_000)
    view, ticks = signals(fleet(4), traffic=traffic), Ticks(POLICY)
    ticks.run(replace(view, missing_routers=1), at_rest(4), 1700)

    assert {one.to_replicas for one in ticks.run(view, at_rest(4), 590)} == {4}
    assert ticks.run(view, at_rest(4), 20)[-1].to_replicas == 3


def test_no_replica_goes_while_the_load_rises():
    """The need of the last minutes allows the shrink, and so does the risen load once it is the mean."""

    def run(ticks: Ticks, load: float, count: int) -> list[ScalingDecision]:
        tokens = round(30 * load * PREFILL_RATE)
        view = signals(fleet(3), traffic=Traffic(seconds=30.0, prompt_tokens=tokens, requests=20_000))
        return [ticks.tick(view, at_rest(3)) for _ in range(count)]

    numbers = [decision.to_replicas for decision in run(Ticks(POLICY), 0.8, 1000)]
    due = numbers.index(2)

    ticks = Ticks(POLICY)
    before = run(ticks, 0.8, due)
    rising = run(ticks, 1.1, 20)
    settled = run(ticks, 1.1, 600)

    assert {decision.to_replicas for decision in before} == {3}
    assert {(one.to_replicas, one.limit) for one in rising} == {(3, LimitingRule.STABILIZATION)}
    assert settled[-1].to_replicas == 2


def test_a_rise_is_not_over_in_a_moment_without_one():
    """Half a minute, in which all traffic that a demand is measured by has become another one."""

    def view(load: float) -> FleetSignals:
        tokens = round(30 * load * PREFILL_RATE)
        return signals(fleet(3), traffic=Traffic(seconds=30.0, prompt_tokens=tokens, requests=20_000))

    ticks = Ticks(POLICY)
    due = next(n for n in range(1000) if ticks.tick(view(0.8), at_rest(3)).to_replicas == 2)
    ticks = Ticks(POLICY)
    ticks.run(view(0.8), at_rest(3), (due - 1) * TICK_SECONDS)

    rising = ticks.run(view(1.1), at_rest(3), 20)
    lull = ticks.run(view(0.7), at_rest(3), 30)

    assert {one.inputs.rising for one in (*rising, *lull[:-2])} == {1}
    assert {one.to_replicas for one in (*rising, *lull[:-2])} == {3}
    assert {(one.inputs.rising, one.to_replicas) for one in lull[-2:]} == {(0, 2)}


def test_moments_above_the_mean_every_few_seconds_do_not_make_a_later_rise_an_old_one():
    def view(load: float) -> FleetSignals:
        tokens = round(30 * load * PREFILL_RATE)
        return signals(fleet(4), traffic=Traffic(seconds=30.0, prompt_tokens=tokens, requests=20_000))

    ticks = Ticks(POLICY)
    for tick in range(1000):
        ticks.tick(view(1.35 if tick % 10 == 0 else 1.2), at_rest(4))

    rising = [ticks.tick(view(1.3 + 1.7 * tick / 90), at_rest(4)) for tick in range(90)]

    assert {one.inputs.rising for one in rising} == {1}


def test_demands_that_are_above_their_means_by_turns_keep_replicas_for_no_longer_than_a_window():
    ticks = Ticks(POLICY)
    decisions: list[ScalingDecision] = []
    for _ in range(17):
        for tokens, sequences in ((round(6 * PREFILL_RATE), 0), (1, 20)):
            traffic = Traffic(seconds=30.0, prompt_tokens=tokens, requests=20_000)
            view = signals(fleet(4, running_sequences=sequences), traffic=traffic)
            decisions += ticks.run(view, at_rest(4), 60)

    rising = "".join(str(decision.inputs.rising) for decision in decisions)
    longest_seconds = max(map(len, rising.split("0"))) * TICK_SECONDS
    assert 240 < longest_seconds <= POLICY.down_stabilization_seconds
    assert min(decision.to_replicas for decision in decisions) == 3


def test_no_demand_counts_as_risen_without_a_request_or_while_compute_is_unknown():
    """A stream whose first token is long past; replicas that have not measured their speed."""
    ticks = Ticks(POLICY)
    ticks.run(signals(fleet(3)), at_rest(3), 60)
    traffic = Traffic(seconds=30.0, prompt_tokens=round(PREFILL_RATE))
    streamed = ticks.run(signals(fleet(3), traffic=traffic), at_rest(3), 60)
    unknown = ticks.run(signals(fleet(3, running_sequences=9, prefill_tokens_per_second=0.0)), at_rest(3), 60)

    assert {decision.inputs.rising for decision in streamed + unknown} == {0}
