"""Pods that a test makes in a namespace of its own, and their manifests."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from warmfleet_testing.cluster.cluster import DevCluster, eventually

IMAGE = f"registry.devcluster.local/warmfleet/warmfleet-worker-cpu:{version('warmfleet')}"


class Pods:
    """One namespace of the cluster."""

    def __init__(self, cluster: DevCluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def kubectl(self, *args: str, **more: Any) -> str:
        return self.cluster.kubectl("-n", self.namespace, *args, **more)

    def apply(self, *manifests: dict[str, Any]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.kubectl("apply", "-f", "-", input=json.dumps(listed))

    def get(self, kind: str, name: str = "") -> Any:
        """An object, or without a name the list of all."""
        return self.cluster.read(self.namespace, kind, name)

    def state(self, name: str) -> dict[str, Any]:
        """State of the pod's first container; empty before the node has seen it."""
        statuses = self.get("pod", name)["status"].get("containerStatuses", [{}])
        return statuses[0].get("state", {})

    def waiting(self, name: str) -> str:
        return self.state(name).get("waiting", {}).get("reason", "")

    def ready(self, name: str, *, seconds: float = 60) -> None:
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={seconds:g}s")

    def phase(self, name: str) -> str:
        return self.get("pod", name)["status"].get("phase", "")

    def sh(self, name: str, script: str) -> str:
        return self.kubectl("exec", name, "-c", "main", "--", "sh", "-c", script)

    def gone(self, name: str) -> bool:
        try:
            self.get("pod", name)
        except LookupError:
            return True
        return False


@contextmanager
def namespace_of_its_own(cluster: DevCluster, test: str) -> Iterator[Pods]:
    """A namespace named after the test, for plain pods."""
    name = test.replace("_", "-")[5:60].strip("-")
    cluster.kubectl("create", "namespace", name)
    eventually(lambda: "default" in cluster.kubectl("-n", name, "get", "serviceaccounts", "-o", "name"))
    yield Pods(cluster, name)
    cluster.kubectl("delete", "namespace", name, "--wait=false")
    cluster.kubectl("-n", name, "delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")


def main(script: str, **fields: Any) -> dict[str, Any]:
    return {"name": "main", "image": IMAGE, "command": ["sh", "-c", script], **fields}


def pod(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": list(containers), **spec},
    }


def deployment(name: str, replicas: int, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    template = pod(name, container, **spec)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": template["metadata"], "spec": template["spec"]},
        },
    }
