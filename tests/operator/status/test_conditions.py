"""Every condition that the operator can write: produced, and documented. The table is walked."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.resources.conditions import CONDITIONS, ConditionStatus, ConditionType, Reason
from warmfleet_operator.objects.pods import LATE_END_SECONDS, ContainerView, PodView
from warmfleet_operator.reconcile.reconcile import unknown_to_routers
from warmfleet_operator.status.conditions import conditions_of, status_conditions
from warmfleet_operator.status.observation import Observation
from warmfleet_operator.status.problem import Problem
from warmfleet_operator.status.stalls import (
    CONFIGURATION_SECONDS,
    CRASHES,
    LONG_RUN_SECONDS,
    RETRY_SECONDS,
    seconds_to_next_change,
    stall,
)
from warmfleet_operator.status.status import status_of
from warmfleet_testing.resources.condition_observations import (
    KSTATUS,
    OBSERVATIONS,
    asleep,
    kstatus,
    reported,
    scaled,
    stopped,
    troubled,
    unready,
    unschedulable,
)
from warmfleet_testing.resources.observations import (
    NO_ROOM_SECONDS,
    NOW,
    advice,
    deployment,
    fleet,
    pod,
    serving,
    workers,
)

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "reference" / "conditions.md"
DEFINITION = REPOSITORY / "crds" / "warmfleet.dev_modeldeployments.yaml"


def rows_of(observation: Observation) -> set[tuple[ConditionType, ConditionStatus, Reason]]:
    return {(item.type, item.status, item.reason) for item in conditions_of(observation)}


def one(observation: Observation, kind: ConditionType):
    return next(item for item in conditions_of(observation) if item.type is kind)


@pytest.mark.parametrize("row", CONDITIONS, ids="-".join)
def test_every_condition_is_produced(row) -> None:
    assert any(row in rows_of(observation) for observation in OBSERVATIONS.values())


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_nothing_is_reported_that_is_not_in_the_table(name) -> None:
    assert rows_of(OBSERVATIONS[name]) <= set(CONDITIONS)
    assert [item.type for item in conditions_of(OBSERVATIONS[name])] == list(ConditionType)


def test_every_condition_is_documented_in_order() -> None:
    rows = re.findall(
        r"^\| (\w+) \| (True|False|Unknown) \| (\w+) \| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE
    )

    assert [row[:3] for row in rows] == [tuple(item.value for item in row) for row in CONDITIONS]
    assert all(len(means.split()) >= 3 for *_, means, _ in rows)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_kstatus_comes_to_an_end_where_nothing_will_change_by_itself(name) -> None:
    assert name in KSTATUS[kstatus(reported(OBSERVATIONS[name]))]


def test_kstatus_waits_for_a_status_that_describes_the_newest_generation() -> None:
    resource = reported(OBSERVATIONS["everything is ready"])
    edited = {**resource, "metadata": {**resource["metadata"], "generation": 4}}
    schema = yaml.safe_load(DEFINITION.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    created = {**deployment(), "status": schema["properties"]["status"]["default"]}

    assert [kstatus(item) for item in (resource, edited, created)] == ["Current", "InProgress", "InProgress"]


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_kstatus_reads_one_answer(name) -> None:
    """Failed, in progress or current: never two of them."""
    observation = OBSERVATIONS[name]
    stalled = one(observation, ConditionType.STALLED).status is ConditionStatus.TRUE
    reconciling = one(observation, ConditionType.RECONCILING).status is ConditionStatus.TRUE
    ready = one(observation, ConditionType.READY).status is ConditionStatus.TRUE

    assert stalled + reconciling + ready <= 1


def test_requests_are_served_only_when_every_router_that_answers_knows_a_worker() -> None:
    partly = one(OBSERVATIONS["one router knows no worker"], ConditionType.ROUTER_READY)
    assert (partly.reason, partly.message) == (
        Reason.ROUTER_HAS_NO_WORKERS,
        "1 of 2 routers know no ready worker of it",
    )
    assert unknown_to_routers(OBSERVATIONS["one router knows no worker"])

    whole = one(OBSERVATIONS["each router knows one worker"], ConditionType.ROUTER_READY)
    assert whole.reason is Reason.ROUTER_SERVING


def test_a_pod_may_wait_for_room_for_two_minutes() -> None:
    waiting = serving(workers=workers(ready=0), pods=(unschedulable(NO_ROOM_SECONDS - 10),), fleet=fleet())

    assert stall(waiting) is None
    assert 10 <= (seconds_to_next_change(waiting) or 0) <= 11
    assert stall(replace(waiting, now_seconds=NOW + 11)) is not None


def test_the_missing_room_of_a_surge_names_the_way_out() -> None:
    problem = stall(OBSERVATIONS["no room for surge"])

    assert problem is not None
    assert problem.reason is Reason.NO_ROOM_FOR_SURGE
    assert "maxSurge: 0" in problem.message
    assert "Insufficient nvidia.com/gpu" in problem.message


def test_without_surge_a_pod_without_room_is_just_unschedulable() -> None:
    observation = OBSERVATIONS["no room for surge"]
    without = replace(observation, deployment=deployment(rollout={"maxSurge": 0, "maxUnavailable": 1}))

    problem = stall(without)

    assert problem is not None
    assert problem.reason is Reason.UNSCHEDULABLE


def test_the_message_names_the_owner_of_the_name() -> None:
    assert "other/older" in one(OBSERVATIONS["name taken"], ConditionType.NAME_ACCEPTED).message


def test_the_message_holds_why_a_fetch_failed() -> None:
    assert "hub: 401" in one(OBSERVATIONS["a fetch failed"], ConditionType.MODEL_CACHED).message


def test_a_retried_fetch_counts_as_progress_only_after_a_while() -> None:
    retrying = ContainerView(
        running=True, running_since_seconds=NOW - 1, exit_code=3, message="hub: 401", restarts=2
    )
    observation = troubled(unready(fetch=retrying, engine=ContainerView()))

    assert one(observation, ConditionType.STALLED).reason is Reason.FETCH_FAILED
    assert RETRY_SECONDS - 1 <= (seconds_to_next_change(observation) or 0) <= RETRY_SECONDS
    later = replace(observation, now_seconds=NOW + RETRY_SECONDS)
    assert one(later, ConditionType.STALLED).reason is Reason.NOT_STALLED
    assert one(later, ConditionType.READY).reason is Reason.PROGRESSING


def test_a_container_that_cannot_be_made_is_in_progress_until_the_kubelet_has_tried_again() -> None:
    """A kubelet whose cache lacks a new Secret reports it as missing, and has it at its next attempt."""
    refused = ContainerView(waiting="CreateContainerConfigError", message='secret "x" not found')
    observation = troubled(unready(engine=refused, containers_wait_since_seconds=NOW - 1))

    assert one(observation, ConditionType.STALLED).reason is Reason.NOT_STALLED
    assert one(observation, ConditionType.READY).reason is Reason.PROGRESSING
    assert CONFIGURATION_SECONDS - 1 <= (seconds_to_next_change(observation) or 0) <= CONFIGURATION_SECONDS
    later = replace(observation, now_seconds=NOW + CONFIGURATION_SECONDS)
    assert one(later, ConditionType.STALLED).reason is Reason.CONFIGURATION_MISSING
    assert seconds_to_next_change(later) is None


def ended_after(seconds: float, **fields: Any) -> PodView:
    """Its engine has ended for the fifth time, just now, and was ready until then."""
    run = {"last_run_seconds": seconds, "last_run_began_seconds": NOW - seconds}
    engine = ContainerView(waiting="CrashLoopBackOff", restarts=5, exit_code=137, **run)
    return unready(**{"engine": engine, "unready_since_seconds": NOW, **fields})


def test_an_engine_that_was_ready_and_ran_for_long_is_in_no_crash_loop() -> None:
    assert stall(troubled(ended_after(LONG_RUN_SECONDS))) is None
    assert stall(troubled(ended_after(LONG_RUN_SECONDS - 1))) is not None


def test_an_engine_that_ends_while_it_loads_is_in_a_crash_loop_however_long_it_loaded() -> None:
    """As with a startup probe that ends it after half an hour, or a model that is too large at its end."""
    loaded_seconds = 1800.0
    never_ready = ended_after(loaded_seconds, unready_since_seconds=NOW - 3 * loaded_seconds)
    ready_before_that_run = ended_after(loaded_seconds, unready_since_seconds=NOW - loaded_seconds)

    for pod_view in (never_ready, ready_before_that_run):
        problem = stall(troubled(pod_view))
        assert problem is not None
        assert problem.reason is Reason.CRASH_LOOPING


START_SECONDS = 660


def started(seconds: float, **fields: Any) -> Observation:
    """One of two replicas has its node since then; the rollout was complete before."""
    made = workers(ready=1)
    made["spec"]["progressDeadlineSeconds"] = START_SECONDS
    late = unready(
        fetch=ContainerView(exit_code=0),
        scheduled_seconds=NOW - seconds,
        unready_since_seconds=NOW - seconds,
        **fields,
    )
    resource = deployment(rollout={"startupTimeoutSeconds": 60})
    return serving(deployment=resource, workers=made, pods=(pod("m-1"), late), fleet=fleet("m-1"))


def test_a_replica_that_is_added_later_has_the_time_of_a_rollout_to_get_ready() -> None:
    early, late = started(START_SECONDS - 10), started(START_SECONDS + 2)

    assert stall(early) is None
    assert 10 <= (seconds_to_next_change(early) or 0) <= 11
    problem = stall(late)
    assert problem is not None
    assert problem.reason is Reason.STARTUP_TIMEOUT
    assert problem.message == (
        "m-2: not ready within spec.rollout.startupTimeoutSeconds (60 s) and ten minutes for its image and "
        "its model"
    )
    assert seconds_to_next_change(late) is None


def test_the_time_to_get_ready_again_begins_when_a_replica_stops_being_ready() -> None:
    made = started(86_400)
    (serves, lost) = made.pods
    just_lost = replace(lost, unready_since_seconds=NOW - 10)

    assert stall(replace(made, pods=(serves, just_lost))) is None
    assert stall(made) is not None


def test_a_replica_without_a_node_and_one_that_was_deleted_are_not_late() -> None:
    for fields in ({"terminating": True}, {"job": "m-fetch"}, {"ready": True}, {"scheduled_seconds": 0.0}):
        made = started(START_SECONDS)
        (serves, late) = made.pods

        assert stall(replace(made, pods=(serves, replace(late, **fields)))) is None


LOST = pod(terminating=True, gone_by_seconds=NOW - LATE_END_SECONDS)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (stopped(deployment=deployment(suspend=True)), Reason.SUSPENDED),
        (asleep(), Reason.ASLEEP),
        (stopped(deployment=deployment(replicas=0)), Reason.NO_REPLICAS),
    ],
    ids=["suspended", "asleep", "no replicas"],
)
def test_a_pod_on_a_lost_node_keeps_no_fleet_from_having_stopped(made, reason) -> None:
    due = replace(made, pods=(replace(LOST, gone_by_seconds=NOW - LATE_END_SECONDS + 10),))
    overdue = replace(made, pods=(LOST,))

    assert one(due, ConditionType.READY).reason is Reason.PROGRESSING
    assert one(due, ConditionType.RECONCILING).message == "1 pods are stopping"
    assert 10 <= (seconds_to_next_change(due) or 0) <= 11
    ready = one(overdue, ConditionType.READY)
    assert (ready.status, ready.reason) == (ConditionStatus.TRUE, reason)
    assert ready.message.endswith("; no node has reported the end of m-1")
    assert kstatus(reported(overdue)) == "Current"


def test_a_number_that_cannot_be_written_follows_no_demand() -> None:
    invalid = Problem(Reason.INVALID_SPEC, "spec.podTemplate: no")

    found = one(
        scaled("Active", advice=advice(3), problem=invalid, carried_out=False), ConditionType.SCALING_ACTIVE
    )

    assert (found.status, found.reason) == (ConditionStatus.FALSE, Reason.ADVISORY)
    assert found.message.startswith(
        "3 replicas are wanted, and 2 are set; nothing is scaled until its objects"
    )


def test_an_engine_that_runs_out_of_memory_is_reported_with_what_to_raise() -> None:
    killed = ContainerView(
        *("CrashLoopBackOff", "the engine process ended"), restarts=CRASHES, exit_code=1, out_of_memory=True
    )

    found = one(troubled(unready(engine=killed)), ConditionType.STALLED)

    assert found.reason is Reason.CRASH_LOOPING
    assert "ran out of memory" in found.message
    assert "(OOMKilled, exit code 1)" in found.message
    assert "raise spec.resources.limits.memory or lower spec.kvCache.size" in found.message
    assert found.message.endswith("the engine process ended")


def test_an_engine_that_runs_out_of_memory_is_reported_with_the_limit_of_its_pod() -> None:
    killed = ContainerView(
        "CrashLoopBackOff", restarts=CRASHES, exit_code=1, out_of_memory=True, memory_limit="4Gi"
    )

    found = one(troubled(unready(engine=killed)), ConditionType.STALLED)

    assert "(OOMKilled, exit code 1, limit 4Gi): raise spec.resources.limits.memory" in found.message


def test_a_fetch_that_runs_out_of_memory_is_reported_as_such() -> None:
    killed = ContainerView("CrashLoopBackOff", exit_code=137, restarts=1, out_of_memory=True)

    found = one(troubled(unready(fetch=killed)), ConditionType.STALLED)

    assert found.reason is Reason.FETCH_FAILED
    assert found.message.startswith("the fetch ran out of memory (OOMKilled, exit code 137)")


def test_workers_that_serve_an_older_revision_keep_it_available_but_not_ready() -> None:
    observation = serving(workers=workers(ready=2, updated=1, replicas=3))

    assert one(observation, ConditionType.AVAILABLE).status is ConditionStatus.TRUE
    assert one(observation, ConditionType.READY).status is ConditionStatus.FALSE
    assert one(observation, ConditionType.RECONCILING).status is ConditionStatus.TRUE


@given(st.sampled_from(sorted(OBSERVATIONS)), st.sampled_from(sorted(OBSERVATIONS)), st.integers(1, 10_000))
def test_a_conditions_time_moves_with_its_status_only(first, second, seconds) -> None:
    before = status_conditions(conditions_of(OBSERVATIONS[first]), (), 1, NOW)
    after = status_conditions(conditions_of(OBSERVATIONS[second]), before, 2, NOW + seconds)

    for old, new in zip(before, after, strict=True):
        same = old["status"] == new["status"]
        assert (old["lastTransitionTime"] == new["lastTransitionTime"]) == same
        assert new["observedGeneration"] == 2


def after(observation: Observation, **fields) -> Observation:
    """Another observation of the same deployment, with the status of the first one written."""
    deployment = {**observation.deployment, "status": status_of(observation)}
    return serving(**{"deployment": deployment, **fields})


def test_a_deployment_that_grows_stays_available_while_the_old_number_serves() -> None:
    grown = {"desired_replicas": 3, "workers": workers(wanted=3, ready=2, replicas=3, updated=3)}
    first = after(serving(), **grown)
    later = after(first, **grown)
    lost = after(later, **{**grown, "workers": workers(wanted=3, ready=1, replicas=3, updated=3)})
    still_short = after(lost, **grown)

    statuses = [one(item, ConditionType.AVAILABLE).status.value for item in (first, later, lost, still_short)]

    assert statuses == ["True", "True", "False", "False"]
    assert "as many as before" in one(first, ConditionType.AVAILABLE).message
    assert one(first, ConditionType.READY).reason is Reason.PROGRESSING


def test_a_lost_replica_is_unavailable_at_once() -> None:
    lost = after(serving(), workers=workers(ready=1))

    assert one(lost, ConditionType.AVAILABLE).status is ConditionStatus.FALSE


def test_while_no_router_answers_readiness_is_unknown() -> None:
    ready = one(OBSERVATIONS["no router answers"], ConditionType.READY)

    assert (ready.status, ready.reason) == (ConditionStatus.UNKNOWN, Reason.ROUTER_UNREACHABLE)
    assert ready.message == "router at 10.0.0.1: refused"


def test_pods_behind_scheduling_gates_are_named() -> None:
    gated = troubled(
        unready(phase="Pending", engine=ContainerView(), scheduling_gates=("kueue.x-k8s.io/admission",))
    )

    progress = one(gated, ConditionType.RECONCILING)

    assert stall(gated) is None
    assert progress.reason is Reason.PROGRESSING
    assert progress.message.endswith(
        "1 wait for their scheduling gates to be removed: kueue.x-k8s.io/admission"
    )
