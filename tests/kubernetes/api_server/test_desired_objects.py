"""What a ModelDeployment wants, before a real API server: admitted, at rest after one apply, changeable."""

import json
import time
from itertools import pairwise

import pytest

from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.objects import desired_objects
from warmfleet_testing.cluster.control_plane import ControlPlane, KubectlError
from warmfleet_testing.resources.desired_specs import (
    EXAMPLES,
    FROM_A_CLAIM,
    FROM_AN_IMAGE,
    GPU_FROM_THE_HUB_ON_A_CLAIM,
    MINIMAL,
    SETTINGS,
    desired,
    manifest,
)

RESTRICTED = "desired-restricted"
LEVELS = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}


@pytest.fixture(scope="module")
def namespace(control_plane: ControlPlane) -> str:
    """One in which the API server refuses every pod that is not restricted."""
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": RESTRICTED, "labels": LEVELS},
    }
    control_plane.kubectl("apply", "-f", "-", input=json.dumps(namespace))
    return RESTRICTED


def in_namespace(children, namespace):
    """Without owners: the garbage collector would look for them."""
    for child in children.values():
        child["metadata"]["namespace"] = namespace
        del child["metadata"]["ownerReferences"]
    return list(children.values())


def apply(control_plane, objects, *flags):
    bundle = {"apiVersion": "v1", "kind": "List", "items": objects}
    return control_plane.kubectl(
        *("apply", "--server-side", "--field-manager=warmfleet-operator", "--validate=strict"),
        *("-f", "-", "-o", "json", *flags),
        input=json.dumps(bundle),
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_object_is_valid_and_every_pod_admitted_under_restricted_pod_security(
    control_plane, namespace, name
):
    spec, release = EXAMPLES[name]
    objects = in_namespace(desired(spec, release), namespace)
    apply(control_plane, objects, "--dry-run=server")
    # Deployments and Jobs with refused pods are only warned about: the pods themselves are asked for.
    for child in objects:
        if "template" in child.get("spec", {}):
            template = child["spec"]["template"]
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {**template["metadata"], "name": "probe", "namespace": namespace},
                "spec": {**template["spec"], "serviceAccountName": "default"},
            }
            pod["spec"].pop("priorityClassName", None)
            pod["spec"].pop("runtimeClassName", None)
            control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))


def test_the_namespace_would_have_refused_a_pod_that_is_not_restricted(control_plane, namespace):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": namespace},
        "spec": {"containers": [{"name": "a", "image": "b"}]},
    }
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))


def test_a_second_apply_changes_nothing(control_plane, namespace):
    spec, release = EXAMPLES["full"]
    spec = {**spec, "replicas": 1, "suspend": True}
    objects = in_namespace(desired(spec, release, name="twice"), namespace)

    def versions():
        return [
            item["metadata"]["resourceVersion"] for item in json.loads(apply(control_plane, objects))["items"]
        ]

    # Kubernetes' own controllers write status for a moment; an apply that wrote would never come to rest.
    deadline = time.monotonic() + 60
    while versions() != versions():
        assert time.monotonic() < deadline
    generation = control_plane.get("deployment", "twice", "-n", namespace)["metadata"]["generation"]
    assert generation == 1


def test_any_source_can_become_any_other(control_plane, namespace):
    catalog_on_a_claim = {
        **MINIMAL,
        "model": {**MINIMAL["model"], "cache": {"persistentVolumeClaim": {"claimName": "models"}}},
    }
    limited = {**MINIMAL, "model": {**MINIMAL["model"], "cache": {"emptyDir": {"sizeLimit": "1Gi"}}}}
    specs = [MINIMAL, FROM_AN_IMAGE, catalog_on_a_claim, limited, MINIMAL, FROM_A_CLAIM, FROM_AN_IMAGE]
    specs += [GPU_FROM_THE_HUB_ON_A_CLAIM, MINIMAL]
    for before, after in pairwise(specs):
        for spec in (before, after):
            children = desired({**spec, "suspend": True}, name="changing")
            (deployment,) = [
                child for child in in_namespace(children, namespace) if child["kind"] == "Deployment"
            ]
            apply(control_plane, [deployment])
        found = control_plane.get("deployment", "changing", "-n", namespace)
        volumes = {item["name"]: item for item in found["spec"]["template"]["spec"]["volumes"]}
        wanted = {item["name"]: item for item in deployment["spec"]["template"]["spec"]["volumes"]}
        assert volumes.keys() == wanted.keys()
        assert {name: set(item) for name, item in volumes.items()} == {
            name: set(item) for name, item in wanted.items()
        }
        assert bool(found["spec"]["template"]["spec"].get("initContainers")) == bool(
            deployment["spec"]["template"]["spec"].get("initContainers")
        )


def test_an_overlay_that_removes_survives_kubectl_apply(control_plane, model_deployments):
    overlay = {
        "spec": {
            "volumes": [{"name": "model", "$patch": "replace", "emptyDir": {"medium": "Memory"}}],
            "topologySpreadConstraints": [{"topologyKey": "kubernetes.io/hostname", "$patch": "delete"}],
        }
    }
    applied = manifest({**MINIMAL, "podTemplate": overlay}, "removing", model_deployments.namespace)
    control_plane.kubectl("apply", "-f", "-", input=json.dumps(applied))
    stored = control_plane.get("modeldeployment", "removing", "-n", model_deployments.namespace)
    children = desired_objects(CheckedDeployment.from_object(stored), SETTINGS)
    (pod,) = [child["spec"]["template"]["spec"] for child in children if child["kind"] == "Deployment"]
    assert pod["volumes"][0] == {"name": "model", "emptyDir": {"medium": "Memory"}}
    assert pod["topologySpreadConstraints"] == []
