"""Install, upgrade, rollback, uninstall and reinstall through Helm 4 on a real control plane.

No nodes: what is tested is what the API server accepts and keeps, not what pods do.
"""

import copy
import json
import subprocess
from pathlib import Path

import pytest
import yaml

from warmfleet_testing.cluster.control_plane import KubectlError, running_control_plane
from warmfleet_testing.cluster.operator_process import eventually
from warmfleet_testing.resources.chart_render import CASES, CHART, REGISTRY, case_values, render

ONE_BACK = Path(__file__).parent / "fixtures" / "warmfleet-0.0.9"
NAMESPACES = ("models", "team-a", "team-b")
CRD = "customresourcedefinition/modeldeployments.warmfleet.dev"
REGISTRY_FLAGS = ("--set", f"images.registry={REGISTRY['images']['registry']}")
FOREIGN = ("monitoring.coreos.com", "gateway.networking.k8s.io")
"""Groups that only a cluster with their operators serves."""

MODEL = """
apiVersion: warmfleet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: smollm2, namespace: models}
spec:
  model: {source: {catalog: {name: smollm2-135m-instruct}}}
  kvCache: {size: 512Mi}
  replicas: 2
"""


@pytest.fixture(scope="module")
def cluster():
    with running_control_plane() as running:
        for name in NAMESPACES:
            running.kubectl("create", "namespace", name)
            running.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
            running.kubectl(
                "wait", "--for=create", "--timeout=60s", "--namespace", name, "serviceaccount/default"
            )
        yield running


def helm(cluster, *arguments):
    """The real `helm`; its exit code is for the caller to judge."""
    return subprocess.run(
        [cluster.binaries["helm"], "--namespace", "models", *arguments],
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def helm_does(cluster, *arguments):
    done = helm(cluster, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def uid(cluster, *arguments):
    return cluster.get(*arguments)["metadata"]["uid"]


@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_every_object(cluster, case):
    objects = [
        item for item in render(case_values(case)).objects if item["apiVersion"].split("/")[0] not in FOREIGN
    ]
    taken = cluster.kubectl("apply", "--dry-run=server", "-f", "-", input=yaml.safe_dump_all(objects))
    assert len(taken.splitlines()) == len(objects)


@pytest.mark.parametrize("case", CASES)
def test_a_namespace_with_restricted_pod_security_admits_every_pod(cluster, case):
    for name, template in render(case_values(case)).pods():
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": copy.deepcopy(template["spec"]),
        }
        pod["spec"].pop("serviceAccountName", None)  # made by the release, which is not installed
        cluster.kubectl(
            "create", "--dry-run=server", "--namespace", "models", "-f", "-", input=json.dumps(pod)
        )


def test_the_namespace_would_refuse_a_pod_that_is_not_restricted(cluster):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "loose"},
        "spec": {"containers": [{"name": "loose", "image": "x"}]},
    }
    with pytest.raises(KubectlError, match="restricted"):
        cluster.kubectl(
            "create", "--dry-run=server", "--namespace", "models", "-f", "-", input=json.dumps(pod)
        )


def test_a_release_lives_through_upgrade_rollback_uninstall_and_a_new_name(cluster):
    helm_does(cluster, "install", "warmfleet", str(ONE_BACK), *REGISTRY_FLAGS)
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", CRD)
    # What a definition brings is discovered, and explained, a moment after it is established.
    eventually(lambda: cluster.kubectl("apply", "--server-side", "-f", "-", input=MODEL), 60)
    model = uid(cluster, "modeldeployments", "smollm2", "--namespace", "models")
    router = uid(cluster, "deployment", "warmfleet-router", "--namespace", "models")
    definition = uid(cluster, CRD)

    # Upgrade: the same objects, more of them, what is no longer wanted gone, the definition grown.
    helm_does(cluster, "upgrade", "warmfleet", str(CHART), *REGISTRY_FLAGS)
    assert uid(cluster, "deployment", "warmfleet-router", "--namespace", "models") == router
    assert cluster.get("networkpolicies", "--namespace", "models")["items"]
    with pytest.raises(KubectlError, match="not found"):
        cluster.get("configmap", "warmfleet-flags", "--namespace", "models")
    field = "modeldeployments.spec.kvCache.blockSizeTokens"
    eventually(lambda: "warmfleet" in cluster.kubectl("explain", field).lower(), 60)
    assert uid(cluster, CRD) == definition

    # Rollback: the first revision's objects again.
    helm_does(cluster, "rollback", "warmfleet", "1")
    assert cluster.get("configmap", "warmfleet-flags", "--namespace", "models")
    assert cluster.get("networkpolicies", "--namespace", "models")["items"] == []
    assert uid(cluster, "deployment", "warmfleet-router", "--namespace", "models") == router
    helm_does(cluster, "upgrade", "warmfleet", str(CHART), *REGISTRY_FLAGS)

    # Uninstall: definition and resources stay.
    helm_does(cluster, "uninstall", "warmfleet")
    assert cluster.get("deployments", "--namespace", "models")["items"] == []
    assert uid(cluster, CRD) == definition
    assert uid(cluster, "modeldeployments", "smollm2", "--namespace", "models") == model

    # Another name: the definition belongs to the old one until it is taken over.
    refused = helm(cluster, "install", "fleet", str(CHART), *REGISTRY_FLAGS)
    assert refused.returncode != 0
    assert "modeldeployments.warmfleet.dev" in refused.stderr
    helm_does(cluster, "uninstall", "fleet", "--ignore-not-found")
    notes = helm_does(cluster, "install", "fleet", str(CHART), *REGISTRY_FLAGS, "--take-ownership")
    assert "kubectl --namespace models port-forward service/fleet-warmfleet-router" in notes
    owner = cluster.get(CRD)["metadata"]["annotations"]["meta.helm.sh/release-name"]
    assert owner == "fleet"
    assert uid(cluster, CRD) == definition
    assert uid(cluster, "modeldeployments", "smollm2", "--namespace", "models") == model

    # A number of replicas that another client set is kept until a value changes it.
    cluster.kubectl("scale", "deployment/fleet-warmfleet-router", "--replicas=3", "--namespace", "models")
    upgrade = ("upgrade", "fleet", str(CHART), *REGISTRY_FLAGS, "--set", "router.replicas=4")
    conflict = helm(cluster, *upgrade)
    assert conflict.returncode != 0
    assert ".spec.replicas" in conflict.stderr
    helm_does(cluster, *upgrade, "--force-conflicts")
    scaled = cluster.get("deployment", "fleet-warmfleet-router", "--namespace", "models")
    assert scaled["spec"]["replicas"] == 4
    helm_does(cluster, "uninstall", "fleet")
    assert uid(cluster, "modeldeployments", "smollm2", "--namespace", "models") == model
