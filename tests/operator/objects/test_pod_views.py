"""What is kept of a pod's containers."""

import pytest

from warmfleet_operator.objects.pods import MAX_MESSAGE_LENGTH, pod_view
from warmfleet_operator.objects.times import seconds_of


def engine_of(**status):
    pod = {
        "metadata": {"name": "m-1", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"containerStatuses": [{"name": "engine", **status}]},
    }
    return pod_view(pod).engine


def ended(message, started="2026-01-01T00:00:00Z", finished="2026-01-01T00:00:30Z"):
    return {
        "terminated": {
            "exitCode": 1,
            "message": message,
            "startedAt": started,
            "finishedAt": finished,
        }
    }


def test_a_restarted_container_runs_and_remembers_its_end():
    view = engine_of(
        state={"running": {"startedAt": "1970-01-01T00:01:00Z"}},
        lastState=ended("no weights"),
        restartCount=1,
    )

    assert (view.running, view.running_since_seconds) == (True, 60.0)
    assert (view.exit_code, view.ended_badly, view.last_run_seconds) == (1, True, 30.0)
    assert (view.message, view.restarts) == ("no weights", 1)


def test_of_a_long_message_the_end_is_kept():
    view = engine_of(state=ended("a trace\n" * 500 + "no weights"))

    assert len(view.message) == MAX_MESSAGE_LENGTH
    assert view.message.endswith("no weights")


def test_a_container_without_times_ran_for_no_time():
    assert engine_of(state={"terminated": {"exitCode": 1}}).last_run_seconds == 0.0


def test_a_run_that_could_not_be_started_lasted_no_time():
    """As containerd reports an executable that is missing: it began with the epoch."""
    view = engine_of(state=ended("no such file", started="1970-01-01T00:00:00Z"))

    assert (view.exit_code, view.last_run_began_seconds, view.last_run_seconds) == (1, 0.0, 0.0)


def pod_with(ready="False", since="2026-01-01T00:00:30Z", **metadata):
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": since}
    engine = {"name": "engine", "state": ended("no weights"), "restartCount": 1}
    return pod_view(
        {
            "metadata": {"name": "m-1", "uid": "u", **metadata},
            "status": {"conditions": [condition], "containerStatuses": [engine]},
        }
    )


@pytest.mark.parametrize(
    ("unready_since", "was_ready"),
    [
        ("2026-01-01T00:00:30Z", True),
        ("2026-01-01T00:00:10Z", True),
        ("2026-01-01T00:00:00Z", False),
        ("2025-12-31T23:59:00Z", False),
        (None, False),
    ],
    ids=["until it ended", "until before its end", "the run before ended", "ever since", "not seen"],
)
def test_whether_a_run_was_ready_is_known_by_when_its_pod_became_unready(unready_since, was_ready):
    """The run began at 0 s and ended at 30 s."""
    assert pod_with(since=unready_since).last_run_was_ready is was_ready


def test_a_ready_pod_is_unready_since_never():
    assert pod_with("True").unready_since_seconds == 0.0


def test_a_deleted_pod_stops_until_a_minute_after_its_grace_period():
    gone_by = seconds_of("2026-01-01T00:05:00Z")  # deleted at 00:00:00 with 300 seconds
    deleted = pod_with(deletionTimestamp="2026-01-01T00:05:00Z")

    assert deleted.terminating
    assert all(deleted.stopping(gone_by + late) for late in (-300, 0, 59))
    assert not any(deleted.stopping(gone_by + late) for late in (60, 86_400))
    assert not pod_with().terminating
    assert not pod_with().stopping(gone_by)


def test_a_run_that_memory_ended_is_known_by_its_reason_with_any_exit_code():
    """The kernel kills the engine process; its server notices, and ends with code 1."""
    killed = {"terminated": {"exitCode": 1, "reason": "OOMKilled", "message": "the engine process ended"}}

    assert engine_of(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=killed).out_of_memory
    assert engine_of(state=killed).out_of_memory
    assert not engine_of(state={"terminated": {"exitCode": 1, "reason": "Error"}}).out_of_memory
    assert not engine_of(state={"running": {}}).out_of_memory


def test_the_memory_limit_is_that_of_the_engines_container():
    sidecar = {"name": "sidecar", "resources": {"limits": {"memory": "64Mi"}}}
    engine = {"name": "engine", "resources": {"limits": {"memory": "4Gi"}}}
    pod = {
        "metadata": {"name": "m-1", "uid": "u"},
        "status": {"containerStatuses": [{"name": "engine", "state": {"running": {}}}]},
    }

    assert pod_view({**pod, "spec": {"containers": [sidecar, engine]}}).engine.memory_limit == "4Gi"
    assert pod_view({**pod, "spec": {"containers": [{"name": "engine"}]}}).engine.memory_limit == ""


def test_the_gates_of_a_pod_are_read_until_they_are_removed():
    pod = {"metadata": {"name": "m-1", "uid": "u"}, "spec": {"schedulingGates": [{"name": "quota"}]}}

    assert pod_view(pod).scheduling_gates == ("quota",)
    assert pod_view({**pod, "spec": {}}).scheduling_gates == ()


def test_a_pod_that_fetches_before_its_engine_starts_is_known_by_its_init_container():
    pod = {"metadata": {"name": "m-1", "uid": "u"}, "spec": {"initContainers": [{"name": "model-fetch"}]}}
    fetched = {"initContainerStatuses": [{"name": "model-fetch", "state": {"terminated": {"exitCode": 0}}}]}

    assert pod_view(pod).lacks_label
    assert not pod_view({**pod, "status": fetched}).lacks_label
    assert not pod_view({**pod, "spec": {"initContainers": [{"name": "other"}]}}).lacks_label
