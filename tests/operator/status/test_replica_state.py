"""The replicas of a fleet as the scaling policy sees them."""

import pytest

from warmfleet_contracts.names import REPLICAS_ANNOTATION
from warmfleet_operator.objects.pods import LATE_END_SECONDS, ContainerView
from warmfleet_operator.scaling.decision import ReplicaState
from warmfleet_operator.status.replica_state import deployment_scale, lacks_only_places, replica_state
from warmfleet_testing.resources.condition_observations import failed
from warmfleet_testing.resources.observations import NO_ROOM_SECONDS, NOW, pod, workers


def state(*pods, **fields):
    return replica_state(deployment_scale(workers(**fields)), pods, NOW, NO_ROOM_SECONDS)


def waiting(seconds, **fields):
    return pod(
        "m-2",
        ready=False,
        phase="Pending",
        engine=ContainerView(),
        **fields,
        unschedulable="no node fits",
        unschedulable_since_seconds=NOW - seconds,
    )


def test_a_fleet_at_rest():
    assert state(pod("m-1"), pod("m-2")) == (
        ReplicaState(spec_replicas=2, ready=2),
        ("uid-m-1", "uid-m-2"),
    )


@pytest.mark.parametrize(
    ("note", "of_another"), [("2", False), ("3", True), ("", False), ("x", False), (None, False)]
)
def test_the_operators_note_shows_whose_the_number_is(note, of_another):
    noted = workers()
    noted["metadata"]["annotations"] = {} if note is None else {REPLICAS_ANNOTATION: note}

    found, _ = replica_state(deployment_scale(noted), [pod("m-1"), pod("m-2")], NOW, NO_ROOM_SECONDS)

    assert (found.spec_replicas, found.set_by_another) == (2, of_another)


def test_a_starting_pod_is_pending_and_an_ending_one_stops():
    found, ready = state(pod("m-1"), pod("m-2", ready=False), pod("m-3", terminating=True))

    assert (found.ready, found.pending, found.stopping) == (1, 1, 1)
    assert ready == ("uid-m-1",)


@pytest.mark.parametrize(("late_seconds", "stopping"), [(LATE_END_SECONDS - 1, 1), (LATE_END_SECONDS, 0)])
def test_a_pod_on_a_lost_node_stops_only_until_its_end_is_overdue(late_seconds, stopping):
    lost = pod("m-3", ready=False, terminating=True, gone_by_seconds=NOW - late_seconds)

    assert state(pod("m-1"), pod("m-2"), lost)[0] == ReplicaState(spec_replicas=2, ready=2, stopping=stopping)


def test_a_fetch_job_is_no_replica():
    found, ready = state(pod("m-1"), pod("m-2"), pod("m-fetch-1", job="m-fetch"))

    assert (found.ready, len(ready)) == (2, 2)


@pytest.mark.parametrize(("seconds", "without_place"), [(NO_ROOM_SECONDS - 1, 0), (NO_ROOM_SECONDS, 1)])
def test_a_pod_that_finds_no_node_is_supply_until_its_time_has_passed(seconds, without_place):
    assert state(pod("m-1"), waiting(seconds))[0].unschedulable == without_place


def test_a_pod_behind_a_scheduling_gate_is_supply_until_its_time_has_passed():
    gated = {"ready": False, "phase": "Pending", "scheduling_gates": ("kueue.x-k8s.io/admission",)}

    early = state(pod("m-1"), pod("m-2", created_seconds=NOW - 5, **gated))[0]
    late = state(pod("m-1"), pod("m-2", created_seconds=NOW - NO_ROOM_SECONDS, **gated))[0]

    assert (early.unschedulable, late.unschedulable) == (0, 1)


def test_pods_that_a_quota_refuses_are_counted_though_they_do_not_exist():
    refused = (failed("ReplicaFailure", "FailedCreate"),)

    found, _ = state(pod("m-1"), wanted=4, ready=1, conditions=refused)

    assert (found.spec_replicas, found.pending, found.unschedulable) == (4, 3, 3)


@pytest.mark.parametrize(
    ("pods", "fields"),
    [
        ((pod("m-1"), pod("m-2")), {"updated": 1}),
        ((pod("m-1"), pod("m-2", revision="old")), {}),
    ],
    ids=["the controller replaces pods", "a pod of an older revision lives"],
)
def test_a_rollout_is_seen_by_its_pods_and_by_its_controller(pods, fields):
    assert state(*pods, **fields)[0].in_rollout


def test_a_template_that_was_not_observed_yet_is_a_rollout():
    written = workers()
    written["metadata"]["generation"] = 2

    assert replica_state(deployment_scale(written), [pod()], NOW, NO_ROOM_SECONDS)[0].in_rollout


@pytest.mark.parametrize(
    ("pods", "only_places"),
    [
        ((pod("m-1"), waiting(300)), True),
        ((pod("m-1", revision="old"), waiting(300)), False),
        ((pod("m-1"), waiting(60)), False),
        ((pod("m-1"), waiting(300), pod("m-3", ready=False)), False),
        ((pod("m-1"),), False),
    ],
    ids=["the release serves", "not yet", "for a minute", "one starts", "none is missing"],
)
def test_a_rollout_that_lacks_only_places_differs_from_one_that_the_release_breaks(pods, only_places):
    assert lacks_only_places(deployment_scale(workers()), pods, NOW, NO_ROOM_SECONDS) is only_places
