"""The operator against a real API server: what it makes, keeps, puts back, and leaves alone."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warmfleet_testing.control_plane import AuditWrite, ControlPlane
from warmfleet_testing.operator_process import USER_AGENT, OperatorProcess, eventually, running_operator

CRD = Path(__file__).parents[2] / "crds" / "warmfleet.dev_modeldeployments.yaml"
KINDS = "serviceaccounts,networkpolicies,services,poddisruptionbudgets,deployments"


class Fleet:
    """One namespace with one operator for all tests of this file; every test has a deployment of its own."""

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

    def writes(self, since: float) -> list[AuditWrite]:
        """Of operators, the lease aside."""
        return [
            write
            for write in self.plane.audit_writes(since)
            if write.user_agent.startswith(USER_AGENT)
            and write.resource != "leases"
            and write.namespace == self.namespace
        ]


@pytest.fixture(scope="module")
def fleet(control_plane: ControlPlane) -> Fleet:
    control_plane.kubectl("apply", "--server-side", "-f", str(CRD))
    control_plane.kubectl("wait", "--for=condition=Established", f"-f={CRD}", "--timeout=20s")
    control_plane.kubectl("create", "namespace", "operator-objects")
    return Fleet(control_plane, "operator-objects")


@pytest.fixture(scope="module")
def operator(fleet: Fleet) -> Iterator[OperatorProcess]:
    with running_operator(fleet.plane, fleet.namespace) as running:
        running.wait_until_leading()
        yield running


def test_a_deployment_gets_its_objects_its_keys_and_its_conditions(
    fleet: Fleet, operator: OperatorProcess
) -> None:
    fleet.apply("makes", replicas=2)

    children = fleet.settled("makes")

    assert set(children) == {
        "ServiceAccount",
        "NetworkPolicy",
        "Service",
        "PodDisruptionBudget",
        "Deployment",
    }
    uid = fleet.get("modeldeployment", "makes")["metadata"]["uid"]
    for child in children.values():
        assert [owner["uid"] for owner in child["metadata"]["ownerReferences"]] == [uid]
        assert "finalizers" not in child["metadata"]
    status = fleet.get("modeldeployment", "makes")["status"]
    assert len(status["conditions"]) == 8
    assert status["readySummary"] == "0/2"
    assert fleet.get("secret", "warmfleet-worker-key")["data"]["namespace-key"]
    assert len(fleet.get("secret", "warmfleet-root-keys")["data"]) == 3


def test_a_second_look_writes_nothing(fleet: Fleet, operator: OperatorProcess) -> None:
    fleet.apply("still")
    fleet.settled("still")
    time.sleep(1.0)  # the status follows the Deployment's
    since = time.time()

    fleet.kubectl("annotate", "modeldeployment", "still", "example.com/touched=1")
    looks = operator.metric("warmfleet_operator_reconciliations_total", result="done")
    eventually(lambda: operator.metric("warmfleet_operator_reconciliations_total", result="done") >= looks)
    time.sleep(1.0)

    assert fleet.writes(since) == []


def test_a_users_label_on_a_child_survives(fleet: Fleet, operator: OperatorProcess) -> None:
    fleet.apply("labelled")
    fleet.settled("labelled")

    fleet.kubectl("label", "service", "labelled", "team=search")
    fleet.apply("labelled", replicas=2)
    eventually(lambda: fleet.get("deployment", "labelled")["spec"]["replicas"] == 2)

    assert fleet.get("service", "labelled")["metadata"]["labels"]["team"] == "search"


def test_an_edit_of_what_the_operator_names_is_put_back(fleet: Fleet, operator: OperatorProcess) -> None:
    fleet.apply("edited")
    fleet.settled("edited")

    fleet.kubectl("scale", "deployment", "edited", "--replicas=5")

    eventually(lambda: fleet.get("deployment", "edited")["spec"]["replicas"] == 1)


@pytest.mark.parametrize("kind", ["service", "deployment", "poddisruptionbudget", "networkpolicy"])
def test_a_deleted_child_comes_back(fleet: Fleet, operator: OperatorProcess, kind: str) -> None:
    fleet.apply("robbed")
    fleet.settled("robbed")
    before = fleet.get(kind, "robbed")["metadata"]["uid"]

    fleet.kubectl("delete", kind, "robbed", "--wait=false")

    eventually(
        lambda: (
            fleet.get(KINDS, "-l", "warmfleet.dev/model-deployment=robbed")["items"]
            and fleet.children("robbed")[fleet.get(kind, "robbed")["kind"]]["metadata"]["uid"] != before
        )
    )
