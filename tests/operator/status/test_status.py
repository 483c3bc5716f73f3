"""The status, when it is written, and which changes become events."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.resources.conditions import Reason
from warmfleet_contracts.resources.ownership import Claim
from warmfleet_operator.objects.pods import ContainerView, PodView
from warmfleet_operator.objects.times import time_of
from warmfleet_operator.routers.fleet import FleetAnswer, FleetView, Tokens, merged_view
from warmfleet_operator.routers.hit_rates import HitRates
from warmfleet_operator.status.conditions import conditions_of, status_conditions
from warmfleet_operator.status.events import changes_to_announce, event_of
from warmfleet_operator.status.observation import Observation
from warmfleet_operator.status.problem import Problem
from warmfleet_operator.status.status import GAUGE_SECONDS, Gauges, status_of, to_write
from warmfleet_testing.resources.observations import NOW, deployment, figures, job, pod, serving, workers

LONG_AGO = Gauges(0.0)
LATER = GAUGE_SECONDS + 1


def with_figures(**fields):
    view = FleetView(2, 2, "", {"uid-m-1": figures(**fields), "uid-m-2": figures()}, polled=True)
    return serving(fleet=view)


def test_a_status_sums_what_routers_report_of_its_own_pods() -> None:
    view = FleetView(
        2,
        2,
        "",
        {"uid-m-1": figures(waiting=3), "uid-m-2": figures(), "uid-of-another": figures()},
        {"m": 3, "models/m": 1, "another": 9},
        polled=True,
    )

    status = status_of(serving(fleet=view, hit_percent=87))

    assert status["kvCache"] == {"capacityTokens": 32_000, "usedPercent": 10, "hitPercent": 87}
    assert status["waitingRequests"] == 7
    assert status["readySummary"] == "2/2"
    assert status["selector"] == "warmfleet.dev/component=worker,warmfleet.dev/model-deployment=m"


def test_what_waits_for_a_name_that_another_deployment_owns_is_not_counted() -> None:
    busy = replace(with_figures().fleet, held={"m": 3, "models/m": 1})

    assert status_of(serving(fleet=busy))["waitingRequests"] == 4
    assert status_of(serving(fleet=busy, request_names=("models/m",)))["waitingRequests"] == 1


def test_workers_that_no_router_knows_have_no_figures() -> None:
    assert "kvCache" not in status_of(serving(fleet=FleetView()))


@pytest.mark.parametrize(
    ("stated", "shown"),
    [
        ((True, True), "Promised"),
        ((True, False), "NotPromised"),
        ((None, False), "NotPromised"),
        ((True, None), None),
        ((None, None), None),
    ],
)
def test_equal_bits_are_promised_where_every_worker_promises_them(stated, shown) -> None:
    workers = {f"uid-m-{number}": figures(exact=exact) for number, exact in enumerate(stated, 1)}
    seen = serving(fleet=FleetView(2, 2, "", workers, polled=True))

    assert status_of(seen).get("equalBits") == shown


def test_what_was_known_of_equal_bits_stays_while_no_router_answers() -> None:
    seen = serving(fleet=FleetView())
    seen = replace(seen, deployment={**seen.deployment, "status": {"equalBits": "Promised"}})

    assert status_of(seen)["equalBits"] == "Promised"


def test_accelerators_are_named() -> None:
    observation = serving(deployment=deployment(accelerator={"count": 1}))

    assert status_of(observation)["accelerator"] == "1 x nvidia.com/gpu"


def test_the_model_is_what_the_fetch_left_behind_and_stays_known() -> None:
    reported = ContainerView(exit_code=0, message='{"digest": "ab", "sizeBytes": 93}')
    fetched = status_of(serving(pods=(pod(fetch=reported),)))
    later = serving(deployment={**deployment(), "status": {"model": fetched["model"]}})

    assert fetched["model"] == {"digest": "ab", "sizeBytes": 93}
    assert status_of(later)["model"] == fetched["model"]


def fetching(name: str, digest: str, **fields: Any) -> PodView:
    """A pod whose fetch reports a model."""
    message = json.dumps({"digest": digest, "sizeBytes": 93})
    return pod(name, fetch=ContainerView(exit_code=0, message=message), **fields)


def model_of(before: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """What a status shows of the model after another one."""
    made = serving(**{"deployment": {**deployment(), "status": {"model": before}}, **fields})
    return dict(status_of(made).get("model", {}))


OLD, NEW = fetching("m-1", "old", revision="old"), fetching("m-2", "new")


def test_the_model_is_that_of_the_newest_revision_although_older_pods_are_listed_first() -> None:
    assert model_of({}, pods=(OLD, NEW)) == {"digest": "new", "sizeBytes": 93}
    assert model_of({}, pods=(OLD,)) == {}


def test_a_digest_is_never_shown_beside_the_commit_of_another_model() -> None:
    known = {"digest": "old", "sizeBytes": 93, "revision": "a" * 40}

    assert model_of(known, commit="a" * 40) == known
    assert model_of(known, commit="b" * 40, pods=(OLD,)) == {"revision": "b" * 40}
    assert model_of(known, pods=(OLD,)) == {}, "another kind of source"
    moved = {"digest": "new", "sizeBytes": 93, "revision": "b" * 40, "resolvedFrom": "a/b@main"}
    assert model_of(known, commit="b" * 40, resolved_from="a/b@main", pods=(OLD, NEW)) == moved


def test_a_model_that_nothing_fetches_has_no_digest_of_the_one_before() -> None:
    known = {"digest": "old", "sizeBytes": 93}

    assert model_of(known, is_fetched=False, pods=(OLD,)) == {}


def test_what_is_known_of_the_model_stays_while_a_spec_has_no_objects() -> None:
    known = {"digest": "old", "sizeBytes": 93, "revision": "a" * 40, "resolvedFrom": "a/b@main"}
    invalid = Problem(Reason.INVALID_SPEC, "spec.podTemplate: no")

    assert model_of(known, problem=invalid) == known
    assert model_of(known, problem=invalid, is_fetched=False) == known


def test_of_the_jobs_that_fetch_only_the_wanted_one_reports_the_model() -> None:
    before, after = fetching("old-1", "old", job="m-fetch-old"), fetching("new-1", "new", job="m-fetch")

    assert model_of({}, job=job("Complete"), job_wanted=True, pods=(before, after))["digest"] == "new"
    assert model_of({}, job=job("Complete"), job_wanted=True, pods=(before,)) == {}
    assert model_of({}, pods=(before, after)) == {}


def test_a_message_of_another_version_is_no_model() -> None:
    for text in ("", "93 bytes", "[]", "null", '{"digest": "a"}'):
        odd = ContainerView(exit_code=0, message=text)
        assert "model" not in status_of(serving(pods=(pod(fetch=odd),)))


def test_the_same_status_is_not_written_twice() -> None:
    status = status_of(with_figures())

    assert to_write(status, status, LONG_AGO, LATER) is None


def test_gauges_wait_for_a_minute_and_five_points() -> None:
    before = status_of(with_figures(pinned_blocks=100))
    little = status_of(with_figures(pinned_blocks=150))
    much = status_of(with_figures(pinned_blocks=300))

    assert to_write(much, before, Gauges(10.0), 10.0 + GAUGE_SECONDS - 1) is None
    assert to_write(little, before, LONG_AGO, LATER) is None
    assert to_write(much, before, LONG_AGO, LATER) == much


def test_waiting_requests_wait_for_a_minute() -> None:
    before, after = status_of(with_figures()), status_of(with_figures(waiting=1))

    assert to_write(after, before, Gauges(10.0), 11.0) is None
    assert to_write(after, before, LONG_AGO, LATER) == after


def test_anything_else_is_written_at_once_and_takes_the_gauges_along() -> None:
    before = status_of(with_figures())
    after = status_of(replace(with_figures(pinned_blocks=900), workers=workers(ready=1)))

    assert to_write(after, before, Gauges(10.0), 10.0) == after


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0, GAUGE_SECONDS - 0.01))
def test_gauges_alone_never_write_within_a_minute(first, second, seconds) -> None:
    before = status_of(with_figures(pinned_blocks=first))
    after = status_of(with_figures(pinned_blocks=second, waiting=second))

    assert to_write(after, before, Gauges(5.0), 5.0 + seconds) is None


def conditions(observation):
    return status_conditions(conditions_of(observation), (), 1, NOW)


def test_normal_progress_is_no_event() -> None:
    starting = conditions(serving(workers=workers(ready=0), pods=()))
    half = conditions(serving(workers=workers(ready=1)))

    assert list(changes_to_announce((), starting)) == []
    assert list(changes_to_announce(starting, half)) == []


def test_getting_ready_is_one_event_and_a_failure_is_one() -> None:
    starting, ready = conditions(serving(workers=workers(ready=1))), conditions(serving())
    refused = conditions(serving(problem=Problem(Reason.OBJECT_REFUSED, "quota")))

    assert [item["type"] for item in changes_to_announce(starting, ready)] == ["Ready"]
    assert [(item["type"], item["reason"]) for item in changes_to_announce(starting, refused)] == [
        ("Stalled", "ObjectRefused")
    ]


def test_a_ready_deployment_that_stalls_has_one_event() -> None:
    crash = ContainerView(waiting="CrashLoopBackOff", restarts=2, exit_code=1, message="no weights")
    crashing = conditions(
        serving(workers=workers(ready=1), pods=(pod("m-1"), pod(ready=False, engine=crash)))
    )

    assert [
        (item["type"], item["reason"]) for item in changes_to_announce(conditions(serving()), crashing)
    ] == [("Stalled", "CrashLooping")]


def test_only_a_failure_is_a_warning() -> None:
    ready = serving()
    stopping = serving(deployment=deployment(suspend=True))
    suspended = serving(deployment=deployment(suspend=True), pods=())

    def kinds(observation: Observation, before: Observation = ready) -> dict[str, str]:
        events = (
            event_of(deployment(), change, "operator-0", NOW)
            for change in changes_to_announce(conditions(before), conditions(observation))
        )
        return {event["reason"]: event["type"] for event in events}

    assert kinds(serving(workers=workers(ready=1))) == {"Progressing": "Normal"}
    assert kinds(stopping) == {"Progressing": "Normal"}
    assert kinds(suspended, before=stopping) == {"Suspended": "Normal"}
    assert kinds(serving(problem=Problem(Reason.OBJECT_REFUSED, "quota"))) == {"ObjectRefused": "Warning"}


def test_an_equal_change_has_an_equal_event_name() -> None:
    (change,) = changes_to_announce(conditions(serving(workers=workers(ready=1))), conditions(serving()))

    first, second = (event_of(deployment(), change, "operator-0", NOW + second) for second in range(2))

    assert first["metadata"] == second["metadata"]
    assert first["type"] == "Normal"
    assert first["regarding"]["uid"] == "uid-m"


def test_a_name_that_is_taken_has_one_event() -> None:
    owner = Claim("other", "older", "uid-older", "2025-01-01T00:00:00Z", ("m",), ("2025-01-01T00:00:00Z",))
    taken = conditions(serving(name_owner=owner, contested_name="m"))

    changes = list(changes_to_announce(conditions(serving()), taken))

    assert [(item["type"], item["reason"]) for item in changes] == [("NameAccepted", "NameTaken")]


@given(st.permutations(["starting", "ready", "refused", "invalid"]))
def test_events_never_repeat_what_stands(order) -> None:
    worlds = {
        "starting": serving(workers=workers(ready=0), pods=()),
        "ready": serving(),
        "refused": serving(problem=Problem(Reason.OBJECT_REFUSED, "quota")),
        "invalid": serving(problem=Problem(Reason.INVALID_SPEC, "no")),
    }
    before: list = []
    for name in order:
        after = conditions(worlds[name])
        assert all(item not in before for item in changes_to_announce(before, after))
        assert list(changes_to_announce(after, after)) == []
        before = after


def test_two_routers_see_the_same_worker_once() -> None:
    answer = {
        "endpoints": [
            {
                "uid": "w",
                "ready": True,
                "block_size_tokens": 16,
                "load": {"total_blocks": 10, "pinned_blocks": 3},
            }
        ],
        "held": {"m": {"requests": 2, "tokens": 9}},
        "tokens": {"m": {"prompt": 100, "cached": 40}},
    }
    answers = [msgspec_decode(answer), msgspec_decode(answer)]

    view = merged_view(answers, routers=2)

    assert view.workers["w"].total_blocks == 10
    assert view.workers["w"].ready_in == {0, 1}
    assert view.held == {"m": 4}
    assert view.tokens == {"m": Tokens(200, 80)}


def msgspec_decode(answer) -> FleetAnswer:

    return msgspec.json.decode(msgspec.json.encode(answer), type=FleetAnswer)


def test_hit_rates_are_of_the_last_minutes_and_survive_a_router() -> None:
    hits = HitRates()
    hits.add({"m": Tokens(1000, 0)}, 0.0)
    assert hits.percent(["m"]) is None

    hits.add({"m": Tokens(1100, 90)}, 10.0)
    assert hits.percent(["m"]) == 90
    hits.add({"m": Tokens(50, 50)}, 20.0)  # a router left
    assert hits.percent(["m"]) == 90
    hits.add({"m": Tokens(150, 50)}, 1000.0)
    assert hits.percent(["m"]) == 0
    assert hits.percent(["another"]) is None


def test_the_served_names_are_reported_also_when_they_are_the_default() -> None:
    chosen = deployment(model={"servedNames": ["a", "b"], "source": {}})

    assert status_of(serving())["servedNames"] == ["m"]
    assert status_of(serving(deployment=chosen))["servedNames"] == ["a", "b"]


def test_a_name_is_claimed_since_it_was_seen_first_and_keeps_that_time() -> None:
    made = "2026-01-01T00:00:00Z"
    chosen = deployment(model={"servedNames": ["a", "b"], "source": {}})
    chosen["metadata"] |= {"creationTimestamp": made, "generation": 1}
    first = status_of(serving(deployment=chosen))["nameClaims"]
    chosen["metadata"]["generation"] = 2
    chosen["spec"]["model"]["servedNames"] = ["c", "a"]
    chosen["status"] = {"nameClaims": first}

    added = status_of(serving(deployment=chosen, now_seconds=NOW))["nameClaims"]
    chosen["status"] = {"nameClaims": added}
    later = status_of(serving(deployment=chosen, now_seconds=NOW + 60))["nameClaims"]

    assert first == [{"name": "a", "since": made}, {"name": "b", "since": made}]
    assert added == [{"name": "c", "since": time_of(NOW)}, {"name": "a", "since": made}]
    assert later == added


def test_the_first_requests_of_a_model_count() -> None:
    hits = HitRates()
    hits.add({}, 0.0)

    hits.add({"m": Tokens(100, 25)}, 10.0)

    assert hits.percent(["m"]) == 25
