"""Pods of a cluster without nodes, in the states that a kubelet would report.

The API server, its controllers and the operator are real; only the kubelet's status is written by the test.
"""

import json
import time
from datetime import UTC, datetime
from itertools import count
from typing import Any

from warmfleet_contracts.names import COMPONENT_LABEL, INSTANCE_LABEL, ROUTER_COMPONENT
from warmfleet_testing.cluster.api_client import object_path
from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.operator_process import eventually

Json = dict[str, Any]


def waiting(reason: str, message: str = "", **more: Any) -> Json:
    """A container that has not been started, and why."""
    return {"state": {"waiting": {"reason": reason, "message": message}}, **more}


def ended(exit_code: int, message: str = "") -> Json:
    """A container that has ended, and what it left behind."""
    return {"state": {"terminated": {"exitCode": exit_code, "message": message, "reason": "Ended"}}}


def running() -> Json:
    """A container that runs."""
    return {"state": {"running": {"startedAt": _time(0)}}}


def crashed(exit_code: int, message: str, restarts: int) -> Json:
    """A container that waits for its next try."""
    return waiting(
        "CrashLoopBackOff",
        "back-off 10s restarting failed container",
        lastState=ended(exit_code, message)["state"],
        restartCount=restarts,
    )


class PlayedPods:
    """The worker pods of one ModelDeployment, and the status that their kubelets would write."""

    def __init__(self, plane: ControlPlane, namespace: str, name: str) -> None:
        self._plane = plane
        self._namespace = namespace
        self._name = name

    def wait(self, number: int = 1) -> list[Json]:
        """Until there are so many; oldest first."""

        def found() -> list[Json] | None:
            selector = f"warmfleet.dev/model-deployment={self._name}"
            items = self._plane.read(self._namespace, "pods", labelSelector=selector)["items"]
            pods = [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]
            return sorted(pods, key=_created) if len(pods) == number else None

        pods: list[Json] = eventually(found)
        return pods

    def report(
        self,
        *,
        engine: Json | None = None,
        fetch: Json | None = None,
        of: int = 1,
        scheduled_seconds_ago: float = 0,
    ) -> None:
        """Of all `of` pods the same: the states of their containers."""
        for pod in self.wait(of):
            self._patch(
                pod,
                {
                    "phase": "Pending",
                    "containerStatuses": [_container(pod["spec"]["containers"], "engine", engine)],
                    "initContainerStatuses": [
                        _container(pod["spec"]["initContainers"], "model-fetch", fetch)
                        for _ in pod["spec"].get("initContainers") or ()
                    ],
                    "conditions": [
                        {
                            **_condition("PodScheduled", status=True),
                            "lastTransitionTime": _time(scheduled_seconds_ago),
                        }
                    ],
                },
            )

    def serve(self, of: int = 1) -> None:
        """Every one of all `of` pods is ready. One that was keeps its address: pods have no order."""
        pods = self.wait(of)
        used = {pod["status"]["podIP"] for pod in pods if "podIP" in pod["status"]}
        free = (address for number in count(1) if (address := f"10.244.200.{number}") not in used)
        for pod in pods:
            address = pod["status"].get("podIP") or next(free)
            self._patch(
                pod,
                {
                    "phase": "Running",
                    "podIP": address,
                    "podIPs": [{"ip": address}],
                    "containerStatuses": [
                        _container(pod["spec"]["containers"], "engine", running(), ready=True)
                    ],
                    "initContainerStatuses": [
                        _container(pod["spec"]["initContainers"], "model-fetch", ended(0))
                        for _ in pod["spec"].get("initContainers") or ()
                    ],
                    "conditions": [
                        _condition(kind, status=True)
                        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
                    ],
                },
            )

    def wait_in_vain(self, seconds_ago: float, of: int = 1) -> None:
        """The scheduler's own verdict on those without a node is made older than it is."""

        def unschedulable() -> list[Json]:
            return [pod for pod in self.wait(of) if _verdict(pod).get("reason") == "Unschedulable"]

        for pod in eventually(unschedulable):
            self._patch(pod, {"conditions": [{**_verdict(pod), "lastTransitionTime": _time(seconds_ago)}]})

    def _patch(self, pod: Json, status: Json) -> None:
        path = f"{object_path(self._namespace, 'pod', pod['metadata']['name'])}/status"
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        answer = self._plane.api.patch(path, content=json.dumps({"status": status}), headers=headers)
        assert answer.is_success, answer.text


def ready_router(plane: ControlPlane, namespace: str, address: str) -> None:
    """A pod that its kubelet calls a ready router, at this address."""
    labels = {COMPONENT_LABEL: ROUTER_COMPONENT, INSTANCE_LABEL: "warmfleet"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "router-0", "labels": labels},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "router", "image": "registry.invalid/warmfleet-router:test"}],
        },
    }
    plane.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(pod))
    status = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [_condition("Ready", status=True)],
    }
    plane.kubectl(
        *("patch", "pod", "router-0", "-n", namespace, "--subresource=status"),
        *("-p", json.dumps({"status": status})),
    )


def _container(specs: list[Json], name: str, state: Json | None, *, ready: bool = False) -> Json:
    image = next(spec["image"] for spec in specs if spec["name"] == name)
    state_fields = state if state is not None else waiting("PodInitializing")
    return {"name": name, "image": image, "imageID": "", "ready": ready, "restartCount": 0, **state_fields}


def _condition(kind: str, *, status: bool) -> Json:
    return {
        "type": kind,
        "status": str(status),
        "lastTransitionTime": _time(0),
        "reason": None,
        "message": None,
    }


def _verdict(pod: Json) -> Json:
    conditions: list[Json] = pod["status"].get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})


def _created(pod: Json) -> str:
    return str(pod["metadata"]["creationTimestamp"])


def _time(seconds_ago: float) -> str:
    return datetime.fromtimestamp(time.time() - seconds_ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
