"""Every reason that needs no worker to compute: a real API server and operator, and kubelets that are played.

The most important ones are tested again on nodes that run pods, in test_conditions_on_nodes.py.
"""

import base64
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from warmfleet_contracts.names import FETCHING_LABEL
from warmfleet_operator.status.stalls import CONFIGURATION_SECONDS
from warmfleet_testing.cluster.condition_rows import wait_for_conditions
from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.model_namespace import ModelNamespace, model_namespace
from warmfleet_testing.cluster.operator_process import OperatorProcess, eventually, running_operator
from warmfleet_testing.cluster.pod_statuses import (
    PlayedPods,
    crashed,
    ended,
    ready_router,
    running,
    waiting,
)

IMAGE_SOURCE = {"source": {"image": {"reference": "registry.invalid/model:1"}}}
OVER_TWO_MINUTES = 130


@pytest.fixture(scope="module")
def fleet(control_plane: ControlPlane) -> Iterator[ModelNamespace]:
    with model_namespace(control_plane, "conditions") as namespace:
        yield namespace


@pytest.fixture(scope="module")
def operator(fleet: ModelNamespace) -> Iterator[OperatorProcess]:
    with running_operator(fleet.plane, fleet.namespace, "--router-poll-seconds=0.5") as running_one:
        running_one.wait_until_leading()
        yield running_one


@pytest.fixture
def port() -> Iterator[int]:
    """A bound port without a listener: no other process gets it, and a router may bind it, too."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def pods(fleet: ModelNamespace, name: str) -> PlayedPods:
    return PlayedPods(fleet.plane, fleet.namespace, name)


def test_a_fleet_that_shall_not_run_is_as_asked_and_not_available(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("idle", suspend=True)

    wait_for_conditions(
        fleet,
        "idle",
        Ready="True Suspended",
        Available="False Suspended",
        Reconciling="False Suspended",
        Stalled="False NotStalled",
        RouterReady="False Suspended",
        ScalingActive="False FixedReplicas",
    )

    fleet.apply("idle", suspend=False, replicas=0)

    wait_for_conditions(
        fleet,
        "idle",
        Ready="True NoReplicas",
        Available="False NoReplicas",
        Reconciling="False NoReplicas",
        Stalled="False NotStalled",
        RouterReady="False NoReplicas",
    )


def test_a_fetch_is_followed_from_nothing_to_cached(fleet: ModelNamespace, operator: OperatorProcess) -> None:
    fleet.apply("fetched")
    worker = pods(fleet, "fetched")
    (pod,) = worker.wait()
    assert pod["metadata"]["labels"][FETCHING_LABEL] == "true"
    wait_for_conditions(fleet, "fetched", Ready="False Progressing", ModelCached="Unknown NotObserved")

    worker.report(fetch=running())
    wait_for_conditions(
        fleet,
        "fetched",
        Ready="False Fetching",
        Available="False MinimumReplicasUnavailable",
        Reconciling="True Fetching",
        Stalled="False NotStalled",
        ModelCached="False Fetching",
    )

    worker.report(fetch=ended(3, "hub: 404: no model smol/missing at main"))
    messages = wait_for_conditions(
        fleet,
        "fetched",
        Ready="False FetchFailed",
        Reconciling="False Stalled",
        Stalled="True FetchFailed",
        ModelCached="False FetchFailed",
    )
    assert messages["Stalled"] == messages["Ready"] == "hub: 404: no model smol/missing at main"

    (pod,) = worker.wait()
    assert pod["metadata"]["labels"][FETCHING_LABEL] == "true"
    worker.report(fetch=ended(0))
    wait_for_conditions(
        fleet,
        "fetched",
        Ready="False Progressing",
        Reconciling="True Progressing",
        Stalled="False NotStalled",
        ModelCached="True Cached",
    )
    eventually(lambda: FETCHING_LABEL not in worker.wait()[0]["metadata"]["labels"])
    assert [item["metadata"]["uid"] for item in worker.wait()] == [pod["metadata"]["uid"]]


def test_an_image_error_is_reported_with_the_kubelets_message(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("unpulled", model=IMAGE_SOURCE)

    pods(fleet, "unpulled").report(engine=waiting("ErrImagePull", "registry.invalid: no such host"))

    messages = wait_for_conditions(
        fleet,
        "unpulled",
        Ready="False ImagePullFailed",
        Stalled="True ImagePullFailed",
        ModelCached="True Provided",
    )
    assert "registry.invalid: no such host" in messages["Stalled"]


def test_a_missing_secret_is_named(fleet: ModelNamespace, operator: OperatorProcess) -> None:
    fleet.apply("unconfigured", model=IMAGE_SOURCE)

    worker = pods(fleet, "unconfigured")
    refused = waiting("CreateContainerConfigError", 'secret "of-mine" not found')

    worker.report(engine=refused)
    wait_for_conditions(fleet, "unconfigured", Stalled="False NotStalled", Ready="False Progressing")
    worker.report(engine=refused, scheduled_seconds_ago=CONFIGURATION_SECONDS)

    messages = wait_for_conditions(
        fleet,
        "unconfigured",
        Ready="False ConfigurationMissing",
        Stalled="True ConfigurationMissing",
    )
    assert 'secret "of-mine" not found' in messages["Stalled"]


def test_a_crash_is_no_loop_and_two_are_until_it_serves(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("crashing", model=IMAGE_SOURCE)
    worker = pods(fleet, "crashing")

    worker.report(engine=crashed(1, "", restarts=0))
    wait_for_conditions(fleet, "crashing", Stalled="False NotStalled", Ready="False Progressing")

    worker.report(engine=crashed(70, "no config.json in the model's folder", restarts=1))
    messages = wait_for_conditions(fleet, "crashing", Ready="False CrashLooping", Stalled="True CrashLooping")
    assert "no config.json in the model's folder" in messages["Stalled"]

    # An attempt that has not ended changes nothing.
    worker.report(engine={**running(), "restartCount": 2, "lastState": ended(70, "no config.json")["state"]})
    fleet.kubectl("annotate", "modeldeployment", "crashing", "example.com/look=1")
    wait_for_conditions(fleet, "crashing", Ready="False CrashLooping", Stalled="True CrashLooping")

    worker.serve()
    wait_for_conditions(
        fleet, "crashing", Stalled="False NotStalled", Available="True MinimumReplicasAvailable"
    )


def test_a_pod_without_a_node_is_unschedulable_after_two_minutes(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("homeless")
    worker = pods(fleet, "homeless")
    worker.wait()
    wait_for_conditions(fleet, "homeless", Ready="False Progressing", Stalled="False NotStalled")

    worker.wait_in_vain(OVER_TWO_MINUTES)

    messages = wait_for_conditions(
        fleet, "homeless", Ready="False Unschedulable", Stalled="True Unschedulable"
    )
    assert "no nodes available" in messages["Stalled"]


def test_a_surge_without_capacity_has_a_reason_of_its_own(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("surging", rollout={"maxSurge": 1, "maxUnavailable": 0})
    worker = pods(fleet, "surging")
    worker.serve()
    wait_for_conditions(
        fleet, "surging", Available="True MinimumReplicasAvailable", Reconciling="False RolloutComplete"
    )

    fleet.apply("surging", rollout={"maxSurge": 1, "maxUnavailable": 0}, engine={"maxRunningSequences": 8})
    worker.wait(2)
    worker.wait_in_vain(OVER_TWO_MINUTES, of=2)

    messages = wait_for_conditions(
        fleet,
        "surging",
        Ready="False NoRoomForSurge",
        Available="True MinimumReplicasAvailable",
        Stalled="True NoRoomForSurge",
    )
    assert "maxSurge: 0" in messages["Stalled"]


def test_workers_that_take_too_long_run_out_of_time(fleet: ModelNamespace, operator: OperatorProcess) -> None:
    fleet.apply("slow", model=IMAGE_SOURCE, rollout={"startupTimeoutSeconds": 60})
    fleet.settled("slow")
    deployment = fleet.get("deployment", "slow")
    conditions = deployment["status"]["conditions"]
    for condition in conditions:
        if condition["type"] == "Progressing":
            condition["lastUpdateTime"] = "2026-01-01T00:00:00Z"

    # Its progress was made long ago: whether that is too long is decided by the Deployment's controller.
    fleet.kubectl(
        *("patch", "deployment", "slow", "--subresource=status", "--type=merge"),
        *("-p", f'{{"status": {{"conditions": {json.dumps(conditions)}}}}}'),
    )

    messages = wait_for_conditions(fleet, "slow", Ready="False StartupTimeout", Stalled="True StartupTimeout")
    assert "startupTimeoutSeconds (60 s)" in messages["Stalled"]


def test_an_overlay_that_contradicts_its_deployment_names_the_field(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("invalid", podTemplate={"metadata": {"labels": {"warmfleet.dev/component": "mine"}}})
    fleet.apply("unsupported", accelerator={"count": 2})

    messages = wait_for_conditions(
        fleet,
        "invalid",
        Ready="False InvalidSpec",
        Stalled="True InvalidSpec",
        NameAccepted="Unknown InvalidSpec",
    )
    assert "spec.podTemplate.metadata.labels" in messages["Stalled"]
    wait_for_conditions(fleet, "unsupported", Ready="False UnsupportedSpec", Stalled="True UnsupportedSpec")


def test_an_object_that_is_refused_is_reported_with_the_api_servers_message_and_others_go_on(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    fleet.apply("refused", podTemplate={"spec": {"containers": [{"name": "sidecar"}]}})
    fleet.kubectl("create", "service", "clusterip", "occupied", "--tcp=80")
    fleet.apply("occupied")
    fleet.apply("next-to-them")

    messages = wait_for_conditions(
        fleet, "refused", Ready="False ObjectRefused", Stalled="True ObjectRefused"
    )
    assert "containers[1].image" in messages["Stalled"]
    messages = wait_for_conditions(
        fleet, "occupied", Ready="False ObjectConflict", Stalled="True ObjectConflict"
    )
    assert "Service occupied" in messages["Stalled"]
    pods(fleet, "next-to-them").serve()
    wait_for_conditions(
        fleet, "next-to-them", Stalled="False NotStalled", Reconciling="False RolloutComplete"
    )


def test_pods_that_a_quota_refuses_stall_their_deployment(control_plane: ControlPlane) -> None:
    with (
        model_namespace(control_plane, "conditions-quota") as fleet,
        running_operator(control_plane, fleet.namespace),
    ):
        fleet.kubectl("create", "quota", "none", "--hard=pods=0")
        # Until that is counted pods are refused in other words, and a ReplicaSet keeps the first ones.
        eventually(lambda: control_plane.get("quota", "none", "-n", fleet.namespace)["status"]["used"])
        fleet.apply("refused")

        messages = wait_for_conditions(
            fleet, "refused", Ready="False ObjectRefused", Stalled="True ObjectRefused"
        )

    assert "exceeded quota: none" in messages["Stalled"]


def test_a_younger_fleet_is_ready_for_everything_but_the_name(
    fleet: ModelNamespace, operator: OperatorProcess
) -> None:
    shared = {"servedNames": ["of-both"], **IMAGE_SOURCE}
    fleet.apply("elder", model=shared)
    wait_for_conditions(fleet, "elder", NameAccepted="True NameAccepted")
    time.sleep(1.1)  # creation times are whole seconds
    fleet.apply("later", model=shared)
    pods(fleet, "later").serve()

    messages = wait_for_conditions(
        fleet,
        "later",
        Ready="False NameTaken",
        Reconciling="False Stalled",
        Stalled="True NameTaken",
        NameAccepted="False NameTaken",
    )

    assert "conditions/elder" in messages["NameAccepted"]


def test_routers_are_missing_then_silent_then_without_workers(
    control_plane: ControlPlane, tmp_path: Path, port: int
) -> None:
    flags = ("--router-poll-seconds=0.3", f"--router-port={port}")
    with (
        model_namespace(control_plane, "conditions-routers") as fleet,
        running_operator(control_plane, fleet.namespace, *flags),
    ):
        fleet.apply("served", model=IMAGE_SOURCE)
        pods(fleet, "served").serve()

        wait_for_conditions(fleet, "served", Ready="False NoRouter", RouterReady="False NoRouter")

        ready_router(control_plane, fleet.namespace, "127.0.0.1")
        messages = wait_for_conditions(
            fleet, "served", Ready="Unknown RouterUnreachable", RouterReady="Unknown RouterUnreachable"
        )
        assert "router at 127.0.0.1" in messages["RouterReady"]

        with router(control_plane, fleet, port, tmp_path):
            wait_for_conditions(
                fleet, "served", Ready="False RouterHasNoWorkers", RouterReady="False RouterHasNoWorkers"
            )


@contextmanager
def router(plane: ControlPlane, fleet: ModelNamespace, port: int, home: Path) -> Iterator[None]:
    """A router that finds the namespace's workers through the API server."""
    keys = fleet.get("secret", "warmfleet-root-keys")["data"]
    secret = {name: base64.b64decode(value).decode() for name, value in keys.items()}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "warmfleet_router", "--host", "127.0.0.1", "--port", str(port)),
            *("--discovery", "kubernetes", "--namespace", fleet.namespace),
            *("--kubeconfig", str(plane.kubeconfig)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={
            **plane.environment,
            "WARMFLEET_HOME": str(home),
            "WARMFLEET_WORKER_TOKEN_ROOT": secret["worker-token-root"],
            "WARMFLEET_SALT_KEY": secret["salt-key"],
            "WARMFLEET_OPERATOR_TOKEN": secret["operator-token"],
        },
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()
