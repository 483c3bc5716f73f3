"""The control plane itself: what every other test here stands on."""

import time

import pytest

from warmfleet_testing.cluster.control_plane import ControlPlane, KubectlError


def test_the_api_server_is_kubernetes_1_36(control_plane: ControlPlane) -> None:
    assert "Server Version: v1.36.3" in control_plane.kubectl("version")


def test_controllers_and_scheduler_work(control_plane: ControlPlane) -> None:
    control_plane.kubectl("create", "namespace", "controllers-work")
    control_plane.kubectl("-n", "controllers-work", "create", "deployment", "d", "--image=none.invalid/x:1")
    deadline = time.monotonic() + 20
    while True:
        events = control_plane.get("events", "-n", "controllers-work")["items"]
        if any(event["reason"] == "FailedScheduling" for event in events):
            break
        assert time.monotonic() < deadline, events
        time.sleep(0.2)


def test_the_audit_log_counts_writes_and_no_reads(control_plane: ControlPlane) -> None:
    since = time.time()
    control_plane.kubectl("create", "configmap", "counted")
    control_plane.kubectl("get", "configmaps")
    with pytest.raises(KubectlError, match="already exists"):
        control_plane.kubectl("create", "configmap", "counted")
    writes = [
        w for w in control_plane.audit_writes(since) if w.resource == "configmaps" and w.name == "counted"
    ]
    assert [(w.verb, w.code) for w in writes] == [("create", 201), ("create", 409)]
    assert {w.user for w in writes} == {"warmfleet-devcluster-admin"}


def test_invalid_objects_are_refused_by_kubectl_too(control_plane: ControlPlane) -> None:
    with pytest.raises(KubectlError, match="unknown field"):
        control_plane.kubectl(
            "create",
            "-f",
            "-",
            input='{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"nope":1}}',
        )
