"""What the chart's admission policy lets the operator's account change of a pod, on a real API server."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from warmfleet_contracts.names import DELETION_COST_ANNOTATION, FETCHING_LABEL
from warmfleet_testing.cluster.api_client import object_path
from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.cluster.model_namespace import ModelNamespace, model_namespace
from warmfleet_testing.cluster.operator_process import eventually
from warmfleet_testing.resources.chart_render import render

KINDS = {
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "worker", "labels": {"app": "a"}, "annotations": {"note": "kept"}},
    "spec": {"automountServiceAccountToken": False, "containers": [{"name": "a", "image": "a.invalid/a:1"}]},
}
IMAGE = {"containers": [{"name": "a", "image": "b.invalid/b:2"}]}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "thief", "uid": "0"}


class Operator:
    """The operator's account, as the chart grants and limits it."""

    def __init__(self, fleet: ModelNamespace) -> None:
        self._fleet = fleet

    def patch(self, change: dict[str, Any]) -> str:
        """The refusal, empty if there is none."""
        answer = self._fleet.plane.api.patch(
            object_path(self._fleet.namespace, "pod", "worker"),
            content=json.dumps(change),
            headers={
                "Content-Type": "application/strategic-merge-patch+json",
                "Impersonate-User": f"system:serviceaccount:{self._fleet.namespace}:warmfleet-operator",
            },
        )
        return "" if answer.is_success else str(answer.json()["message"])


@pytest.fixture(scope="module")
def fleet(control_plane: ControlPlane) -> Iterator[ModelNamespace]:
    with model_namespace(control_plane, "pod-changes") as made:
        objects = [item for item in render(namespace=made.namespace).objects if item["kind"] in KINDS]
        assert {item["kind"] for item in objects} == KINDS
        made.kubectl(
            "apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )
        made.kubectl("apply", "-f", "-", input=json.dumps(POD))
        yield made


@pytest.fixture(scope="module")
def operator(fleet: ModelNamespace) -> Operator:
    account = Operator(fleet)
    # A policy is in force moments after it was made.
    eventually(lambda: "the only annotation" in account.patch(annotations(probe=str(time.time()))))
    return account


def annotations(**changes: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": changes}}


def labels(**changes: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": changes}}


def test_the_deletion_cost_and_the_label_of_fetching_pods_may_be_set_changed_and_removed(
    operator: Operator,
) -> None:
    for cost, fetching in (("-1", "true"), ("-2", "true"), (None, None)):
        assert operator.patch(annotations(**{DELETION_COST_ANNOTATION: cost})) == ""
        assert operator.patch(labels(**{FETCHING_LABEL: fetching})) == ""


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (annotations(more="x"), "the only annotation of a pod"),
        (annotations(note="changed"), "the only annotation of a pod"),
        (annotations(note=None), "the only annotation of a pod"),
        (labels(app="b"), "the only label of a pod"),
        (labels(app=None), "the only label of a pod"),
        (labels(more="x"), "the only label of a pod"),
        ({"spec": IMAGE}, "may not change the spec"),
        ({"spec": {"activeDeadlineSeconds": 1}}, "may not change the spec"),
        ({"metadata": {"finalizers": ["example.com/kept"]}}, "may not change owners and finalizers"),
        ({"metadata": {"ownerReferences": [OWNER]}}, "may not change owners and finalizers"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_nothing_else_of_a_pod_may_be_changed(
    operator: Operator, change: dict[str, Any], refusal: str
) -> None:
    assert refusal in operator.patch(change)


def test_a_permitted_change_does_not_carry_another_one_with_it(operator: Operator) -> None:
    assert "may not change the spec" in operator.patch(
        {**annotations(**{DELETION_COST_ANNOTATION: "-3"}), "spec": IMAGE}
    )


def test_other_accounts_are_not_concerned(fleet: ModelNamespace, operator: Operator) -> None:
    fleet.kubectl("annotate", "pod", "worker", "added=by-an-administrator")

    # What another account has added does not stand in the way of the operator's own change.
    assert operator.patch(annotations(**{DELETION_COST_ANNOTATION: "-4"})) == ""
