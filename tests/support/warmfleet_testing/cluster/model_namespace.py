"""A namespace with ModelDeployments, as kubectl shows what operators make of them."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from warmfleet_testing.cluster.api_client import api_client, object_path, read_object
from warmfleet_testing.cluster.control_plane import AuditWrite, ControlPlane
from warmfleet_testing.cluster.operator_process import USER_AGENT, eventually

CRD: Final = Path(__file__).parents[4] / "crds" / "warmfleet.dev_modeldeployments.yaml"
CHILDREN: Final = {
    "ServiceAccount": "serviceaccounts",
    "NetworkPolicy": "networkpolicies",
    "Service": "services",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Deployment": "deployments",
}


@contextmanager
def model_namespace(plane: ControlPlane, name: str) -> Iterator["ModelNamespace"]:
    """A new namespace, deleted at the end; the CustomResourceDefinition is served."""
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    plane.kubectl("wait", "--for=condition=Established", f"-f={CRD}", "--timeout=20s")
    plane.kubectl("create", "namespace", name)
    with api_client(plane.kubeconfig) as api:
        made = ModelNamespace(plane, name, api)
        # Established comes moments before requests are served.
        eventually(lambda: made.get("modeldeployment"))
        yield made
    plane.kubectl("delete", "namespace", name, "--wait=false")


class ModelNamespace:
    """One namespace with ModelDeployments in it, and what operators made of them."""

    def __init__(self, plane: ControlPlane, namespace: str, api: httpx.Client) -> None:
        self.plane = plane
        self._api = api
        self.namespace = namespace

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - as in subprocess
        return self.plane.kubectl("-n", self.namespace, *args, input=input)

    def get(self, kind: str, name: str = "", **query: str) -> Any:
        """An object, or without a name the list of all; LookupError if it is not there."""
        return read_object(self._api, self.namespace, kind, name, **query)

    def items(self, kind: str, **query: str) -> list[dict[str, Any]]:
        """Objects of one kind."""
        items: list[dict[str, Any]] = self.get(kind, **query)["items"]
        return items

    def events(self, name: str) -> list[dict[str, Any]]:
        """Events that operators wrote about one ModelDeployment."""
        return [item for item in self.items("events") if item["regarding"]["name"] == name]

    def apply(self, name: str, **spec: Any) -> None:
        """As `kubectl apply --server-side`: what an earlier apply had and this one has not is removed."""
        manifest = {
            "apiVersion": "warmfleet.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": {"name": name},
            "spec": {
                "model": {"source": {"catalog": {"name": "smollm2-135m-instruct"}}},
                "kvCache": {"size": "64Mi"},
                **spec,
            },
        }
        answer = self._api.patch(
            self._path("modeldeployment", name),
            params={"fieldManager": "user", "force": "true"},
            content=json.dumps(manifest),
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
        assert answer.is_success, answer.text

    def merge(self, kind: str, name: str, change: dict[str, Any]) -> None:
        """Change a few fields of an object."""
        headers = {"Content-Type": "application/merge-patch+json"}
        answer = self._api.patch(self._path(kind, name), content=json.dumps(change), headers=headers)
        assert answer.is_success, answer.text

    def touch(self, name: str) -> None:
        """Give the operator a reason to look at a ModelDeployment."""
        annotations = {"example.com/touched": str(time.time())}
        self.merge("modeldeployment", name, {"metadata": {"annotations": annotations}})

    def scale(self, kind: str, name: str, replicas: int) -> None:
        """As `kubectl scale`."""
        headers = {"Content-Type": "application/merge-patch+json"}
        path = f"{self._path(kind, name)}/scale"
        answer = self._api.patch(path, content=json.dumps({"spec": {"replicas": replicas}}), headers=headers)
        assert answer.is_success, answer.text

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, not waiting for it to be gone."""
        answer = self._api.delete(self._path(kind, name))
        assert answer.is_success, answer.text

    def children(self, name: str) -> dict[str, Any]:
        """What was made for a deployment and is not on its way out, by kind."""
        selector = f"warmfleet.dev/model-deployment={name}"
        return {
            kind: item
            for kind, plural in CHILDREN.items()
            for item in self.items(plural, labelSelector=selector)
            if "deletionTimestamp" not in item["metadata"]
        }

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        conditions = self.get("modeldeployment", name)["status"]["conditions"]
        return {condition["type"]: condition for condition in conditions}[kind]

    def settled(self, name: str) -> dict[str, Any]:
        """The children, once they are all there and the status speaks of the current spec."""

        def complete() -> dict[str, Any] | None:
            deployment = self.get("modeldeployment", name)
            children = self.children(name)
            status = deployment.get("status", {})
            seen = status.get("observedGeneration") == deployment["metadata"]["generation"]
            return children if len(children) == 5 and seen and status.get("replicas") else None

        found: dict[str, Any] = eventually(complete)
        return found

    def at_rest(self) -> bool:
        """Whether every status is complete: all replicas are made, and routers were asked."""
        return all(_is_at_rest(deployment) for deployment in self.items("modeldeployments"))

    def has(self, name: str, kind: str, status: str, reason: str = "") -> dict[str, Any] | None:
        """The condition, once it is as given."""
        found = self.condition(name, kind)
        matches = found["status"] == status and reason in {"", found["reason"]}
        return found if matches else None

    def writes(self, since: float, operator: str = "") -> list[AuditWrite]:
        """Of all operators, or of one by its identity; the lease aside."""
        return [
            write
            for write in self.plane.audit_writes(since)
            if write.user_agent.startswith(USER_AGENT)
            and operator in write.user_agent
            and write.resource != "leases"
            and write.namespace == self.namespace
        ]

    def takeovers(self, since: float, operator: str) -> list[AuditWrite]:
        """Writes of the lease by one operator that the API server took."""
        return [
            write
            for write in self.plane.audit_writes(since)
            if write.resource == "leases"
            and operator in write.user_agent
            and write.namespace == self.namespace
            and write.code < 300
        ]

    def operator_kubeconfig(self, objects: Sequence[dict[str, Any]], folder: Path) -> Path:
        """Apply the chart's `objects`; the file by which the operator's account reaches the server."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", input=json.dumps(listed))
        kubeconfig = json.loads(self.kubectl("config", "view", "--raw", "-o", "json"))
        token = self.kubectl("create", "token", "warmfleet-operator").strip()
        kubeconfig["users"] = [{"name": kubeconfig["users"][0]["name"], "user": {"token": token}}]
        path = folder / "kubeconfig"
        path.write_text(json.dumps(kubeconfig))
        return path

    def _path(self, kind: str, name: str) -> str:
        return object_path(self.namespace, kind, name)


def _is_at_rest(deployment: dict[str, Any]) -> bool:
    status = deployment.get("status", {})
    if status.get("observedGeneration") != deployment["metadata"]["generation"]:
        return False
    counts = {status[name] for name in ("replicas", "updatedReplicas", "desiredReplicas")}
    routers = {item["reason"] for item in status["conditions"] if item["type"] == "RouterReady"}
    return len(counts) == 1 and "RouterUnreachable" not in routers
