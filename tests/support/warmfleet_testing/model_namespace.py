"""A namespace with ModelDeployments, as kubectl shows what operators make of them."""

import json
from pathlib import Path
from typing import Any, Final

from warmfleet_testing.control_plane import AuditWrite, ControlPlane
from warmfleet_testing.operator_process import USER_AGENT, eventually

CRD: Final = Path(__file__).parents[3] / "crds" / "warmfleet.dev_modeldeployments.yaml"
KINDS: Final = "serviceaccounts,networkpolicies,services,poddisruptionbudgets,deployments"


def model_namespace(plane: ControlPlane, name: str) -> "ModelNamespace":
    """A new namespace; the CustomResourceDefinition is served."""
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    plane.kubectl("wait", "--for=condition=Established", f"-f={CRD}", "--timeout=20s")
    plane.kubectl("create", "namespace", name)
    return ModelNamespace(plane, name)


class ModelNamespace:
    """One namespace with ModelDeployments in it, and what operators made of them."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - as in subprocess
        return self.plane.kubectl("-n", self.namespace, *args, input=input)

    def get(self, *args: str) -> Any:
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def apply(self, name: str, **spec: Any) -> None:
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
        self.kubectl("apply", "-f", "-", input=json.dumps(manifest))

    def delete(self, name: str) -> None:
        self.kubectl("delete", "modeldeployment", name, "--wait=true", "--timeout=20s")

    def children(self, name: str) -> dict[str, Any]:
        items = self.get(KINDS, "-l", f"warmfleet.dev/model-deployment={name}")["items"]
        return {item["kind"]: item for item in items}

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        conditions = self.get("modeldeployment", name)["status"]["conditions"]
        return next(condition for condition in conditions if condition["type"] == kind)

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

    def has(self, name: str, kind: str, status: str, reason: str = "") -> dict[str, Any] | None:
        """The condition, once it is as said."""
        found = self.condition(name, kind)
        as_said = found["status"] == status and reason in {"", found["reason"]}
        return found if as_said else None

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
