"""One tick's view of a fleet: newest reports, sums over routers, and what counts as missing."""

import itertools

import pytest

from warmfleet_contracts.cache.fleet_totals import (
    FleetTotals,
    LatencyHistogram,
    MissTokens,
    RefusedRequests,
)
from warmfleet_operator.scaling.signals import (
    LATENCY_SECONDS,
    SAMPLE_SECONDS,
    STALE_SECONDS,
    Reading,
    newest_reports,
)
from warmfleet_testing.resources.scaling_signals import (
    CAPACITY_TOKENS,
    SEATS,
    Merges,
    fleet,
    replica,
    totals,
)


def test_the_newest_report_of_a_replica_counts_and_what_routers_queue_adds_up():
    older = replica("pod-0", report_age_seconds=3.0, pinned_tokens=10)
    newer = replica("pod-0", report_age_seconds=0.5, pinned_tokens=70)
    fields = {"queued_requests": 2, "queued_tokens": 500, "held_requests": 1, "held_tokens": 40}

    view = Merges(routers=2).at(
        0.0, totals("a", replicas=[older], **fields), totals("b", replicas=[newer], **fields)
    )

    assert [item.pinned_tokens for item in view.replicas] == [70]
    assert (view.queued_requests, view.queued_tokens) == (4, 1000)
    assert (view.held_requests, view.held_tokens) == (2, 80)
    assert view.complete


def test_the_age_of_an_answer_adds_to_the_ages_in_it():
    report = replica("pod-0", report_age_seconds=1.0)
    readings = [Reading(totals("a", replicas=[report]), age_seconds=STALE_SECONDS)]

    assert newest_reports(readings) == {}


def test_routers_that_disagree_are_settled_by_age_in_either_order():
    one = totals("a", replicas=[replica("pod-0", report_age_seconds=2.0, ready=False, pinned_tokens=1)])
    other = totals("b", replicas=[replica("pod-0", report_age_seconds=1.0, pinned_tokens=2)])

    for answers in ((one, other), (other, one)):
        (report,) = Merges(routers=2).at(0.0, *answers).replicas
        assert report.pinned_tokens == 2


def test_the_reuse_that_routers_have_seen_of_a_replicas_own_blocks_adds_up_in_either_order():
    def reported(age_seconds, value, **fields):
        unique = {"unique_blocks": 7, "unique_value_tokens_per_second": value}
        return replica("pod-0", report_age_seconds=age_seconds, **{**unique, **fields})

    one = totals("a", replicas=[reported(2.0, 300.0)])
    newest = totals("b", replicas=[reported(0.5, 20.0, pinned_tokens=70)])
    idle = totals("c", replicas=[reported(1.0, 0.0)])
    stale = totals("d", replicas=[reported(STALE_SECONDS + 0.1, 1000.0)])
    earlier_life = totals("e", replicas=[reported(1.0, 1000.0, epoch="an earlier one")])

    for answers in itertools.permutations((one, newest, idle, stale, earlier_life)):
        (report,) = newest_reports(map(Reading, answers)).values()
        assert report.unique_value_tokens_per_second == 320.0
        assert (report.unique_blocks, report.pinned_tokens) == (7, 70)


@pytest.mark.parametrize(
    "broken",
    [
        {"report_age_seconds": None},
        {"report_age_seconds": STALE_SECONDS + 0.1},
        {"report_age_seconds": 3600.0},
        {"capacity_tokens": 0},
        {"pinned_tokens": CAPACITY_TOKENS + 1},
        {"evictable_tokens": CAPACITY_TOKENS + 1},
        {"capacity_tokens": 10 * CAPACITY_TOKENS},
        {"capacity_tokens": CAPACITY_TOKENS // 10},
        {"queued_uncached_tokens": 10 * CAPACITY_TOKENS + 1},
        {"running_sequences": SEATS + 1},
        {"running_sequences": 10 * SEATS, "waiting_sequences": 1, "seats": 10 * SEATS},
        {"waiting_sequences": 10 * SEATS + 1, "seats": 0},
    ],
    ids=str,
)
def test_a_report_that_is_late_or_cannot_be_right_is_missing(broken):
    merges = Merges(ready_uids=("pod-0", "pod-1", "pod-2"))

    view = merges.at(0.0, totals("a", replicas=[*fleet(2), replica("pod-2", **broken)]))

    assert [item.uid for item in view.replicas] == ["pod-0", "pod-1"]
    assert view.missing_replicas == 1
    assert not view.complete


@pytest.mark.parametrize(
    "much",
    [
        {"pinned_tokens": CAPACITY_TOKENS},
        {"evictable_tokens": CAPACITY_TOKENS},
        {"running_sequences": SEATS, "waiting_sequences": 9 * SEATS},
        {"queued_uncached_tokens": 10 * CAPACITY_TOKENS},
        {"seats": 0, "running_sequences": SEATS},
    ],
    ids=str,
)
def test_a_report_that_may_be_right_counts_however_far_it_is_from_the_others(much):
    merges = Merges(ready_uids=("pod-0", "pod-1", "pod-2"))

    assert merges.at(0.0, totals("a", replicas=[*fleet(2), replica("pod-2", **much)])).complete


def test_a_replica_that_is_not_ready_is_neither_counted_nor_missed():
    view = Merges(ready_uids=("pod-0",)).at(0.0, totals("a", replicas=fleet(3, pinned_tokens=5)))

    assert [item.uid for item in view.replicas] == ["pod-0"]
    assert view.complete


def test_a_router_that_does_not_answer_is_missing():
    one_gone = Merges(routers=2).at(0.0, totals("a", replicas=fleet(1)))
    all_gone = Merges(routers=2).at(0.0)

    assert (one_gone.missing_routers, one_gone.complete) == (1, False)
    assert (all_gone.routers, all_gone.missing_replicas, all_gone.complete) == (0, 1, False)


def counted(prompt_tokens: int, requests: int = 0, router: str = "a", **fields):
    return totals(
        router,
        prompt_tokens=prompt_tokens,
        cached_tokens=prompt_tokens // 2,
        misses=MissTokens(capacity=prompt_tokens // 4),
        first_token=LatencyHistogram((0, requests)),
        **fields,
    )


def test_traffic_is_what_changed_within_half_a_minute_and_latencies_within_a_minute():
    merges = Merges()
    for now in range(0, 121, 2):
        view = merges.at(float(now), counted(prompt_tokens=10 * now, requests=now))

    assert 30.0 <= view.traffic.seconds <= 30.0 + SAMPLE_SECONDS + 2
    assert view.traffic.prompt_tokens == 10 * view.traffic.seconds
    assert view.traffic.hit_ratio == 0.5
    assert view.traffic.misses.capacity == pytest.approx(view.traffic.prompt_tokens / 4, abs=1)
    assert 60 <= sum(view.first_token.counts) <= 60 + SAMPLE_SECONDS + 2


def test_the_first_answer_is_a_baseline_however_long_the_router_has_run():
    merges = Merges()

    first = merges.at(0.0, counted(10**9))
    second = merges.at(2.0, counted(10**9 + 50))

    assert (first.traffic.seconds, first.traffic.prompt_tokens) == (0.0, 0)
    assert second.traffic.prompt_tokens == 50


def test_a_router_that_restarted_counts_from_zero_and_its_older_life_no_more():
    merges = Merges()
    merges.at(0.0, counted(1000))
    merges.at(6.0, counted(1100))

    view = merges.at(12.0, counted(40, router="another life", uptime_seconds=5.0))

    assert view.traffic.prompt_tokens == 40


def test_a_router_that_joins_with_a_history_of_its_own_is_a_baseline():
    merges = Merges(routers=2)
    merges.at(0.0, counted(1000))
    merges.at(6.0, counted(1100), counted(10**6, router="b", uptime_seconds=9999.0))

    view = merges.at(12.0, counted(1200), counted(10**6 + 7, router="b", uptime_seconds=9999.0))

    assert view.traffic.prompt_tokens == 200 + 7


def test_counters_that_fall_within_one_life_count_as_no_change():
    merges = Merges()
    merges.at(0.0, counted(1000))

    assert merges.at(6.0, counted(10)).traffic.prompt_tokens == 0


def test_served_names_of_one_deployment_add_up():
    answer = totals("a", queued_requests=1)
    both = type(answer)(
        router="a", uptime_seconds=1e6, models={"m": answer.models["m"], "models/m": answer.models["m"]}
    )

    assert Merges().at(0.0, both).queued_requests == 2


def test_the_history_is_bounded_however_often_it_is_asked():
    merges = Merges()
    for now in range(2000):
        merges.at(now / 2, counted(now))

    assert len(merges.history.samples) <= LATENCY_SECONDS / SAMPLE_SECONDS + 3


def test_a_clock_that_is_set_back_or_an_hour_ahead_ends_the_history_and_nothing_else():
    merges = Merges()
    merges.at(5000.0, counted(100))
    back = merges.at(1000.0, counted(200))
    ahead = merges.at(4600.0, counted(300))

    assert back.traffic.prompt_tokens == 0
    assert ahead.traffic.prompt_tokens in {0, 100}
    assert len(merges.history.samples) <= 2


def test_refused_requests_are_those_of_the_last_half_minute_over_all_routers_and_names():
    def refused(router: str, requests: int) -> FleetTotals:
        return totals(
            router,
            refused=RefusedRequests(
                queue_full=requests,
                wait=requests,
                tenant_queue=requests,
                retries=requests,
                tokens=9 * requests,
            ),
        )

    merges = Merges(routers=2)
    merges.at(0.0, refused("a", 100), refused("b", 7))
    traffic = merges.at(30.0, refused("a", 103), refused("b", 9)).traffic
    later = merges.at(60.0, refused("a", 103), refused("b", 9)).traffic

    # By a full queue and a long wait: not those of a tenant's share, and none that was sent again.
    assert (traffic.refused_requests, traffic.refused_tokens) == (2 * (3 + 2), 9 * (3 + 2))
    assert traffic.arrivals == 10
    assert (later.refused_requests, later.refused_tokens) == (0, 0)
