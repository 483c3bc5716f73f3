"""The chart, installed in a cluster as a user installs it, and ModelDeployments in its namespaces."""

import base64
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx

from warmfleet_contracts.names import ROOT_KEYS_OPERATOR_TOKEN, ROUTER_PORT
from warmfleet_testing.cluster.cluster import DevCluster, eventually
from warmfleet_testing.cluster.control_plane import KubectlError
from warmfleet_testing.cluster.loopback_forwarder import LoopbackForwarder
from warmfleet_testing.engine.worker_process import tiny_served_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.resources.chart_render import CHART

TINY_IMAGE: Final = "registry.devcluster.local/models/tiny:1"
"""An image volume with a model of half a megabyte, on the nodes' list of every installed chart."""
RELEASE: Final = "warmfleet"
RELEASE_NAMESPACE: Final = "warmfleet"
READY_SECONDS: Final = 90.0
SCRAPER_LABELS: Final = {"app.kubernetes.io/name": "prometheus"}
"""Of pods, in any namespace, that may read the metrics of workers and operators."""

QUICK_VALUES: Final[Mapping[str, Any]] = {
    "rbac": {"scope": "Cluster"},
    "operator": {"extraArgs": ["--router-poll-seconds=1", "--no-room-seconds=6"]},
    "networkPolicies": {
        "scrapers": [{"namespaceSelector": {}, "podSelector": {"matchLabels": dict(SCRAPER_LABELS)}}]
    },
    "workers": {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
}
"""Values with which one release serves every test's namespace, and tests need little patience."""


@dataclass(frozen=True)
class Installed:
    """A release, seen from one namespace with ModelDeployments: where `apply` and the others look."""

    cluster: DevCluster
    forwarder: LoopbackForwarder
    router_url: str
    """The routers' Service, from the test process; without a final slash."""
    operator_token: str
    """With it a router shows which workers it knows."""
    namespace: str = RELEASE_NAMESPACE
    release: str = RELEASE
    release_namespace: str = RELEASE_NAMESPACE

    @contextmanager
    def within(self, namespace: str) -> Iterator["Installed"]:
        """The same release with a new namespace for models, whose models are gone afterwards."""
        self.cluster.kubectl("create", "namespace", namespace)
        models = replace(self, namespace=namespace)
        try:
            yield models
        finally:
            models.kubectl("delete", "modeldeployments", "--all", "--wait=true", "--timeout=60s")
            self.cluster.kubectl("delete", "namespace", namespace, "--wait=false")

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - as in subprocess
        """kubectl in the models' namespace."""
        return self.cluster.kubectl("-n", self.namespace, *args, input=input)

    def get(self, *args: str) -> Any:
        """`kubectl get`, decoded, in the models' namespace."""
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """`kubectl apply`."""
        documents = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        self.kubectl("apply", "-f", "-", input=documents)

    def delete(self, name: str) -> None:
        """Delete a ModelDeployment and wait until its pods are gone."""
        self.kubectl("delete", "modeldeployment", name, "--wait=true", "--timeout=60s")
        eventually(lambda: self.pods(name), [], seconds=60)

    def resource(self, name: str) -> dict[str, Any]:
        """The ModelDeployment."""
        found: dict[str, Any] = self.cluster.read(self.namespace, "modeldeployment", name)
        return found

    def conditions(self, name: str) -> dict[str, dict[str, Any]]:
        """Of a ModelDeployment, by type; empty before the operator's first look."""
        listed = self.resource(name).get("status", {}).get("conditions", [])
        return {condition["type"]: condition for condition in listed}

    def wait_for(self, name: str, kind: str, status: str, reason: str = "", seconds: float = 60.0) -> Any:
        """Until a condition is as given and belongs to the current spec; returns the condition."""

        def is_so(resource: dict[str, Any]) -> bool:
            found = _condition(resource, kind)
            return (
                found.get("status") == status
                and reason in {"", found["reason"]}
                and found["observedGeneration"] == resource["metadata"]["generation"]
            )

        return _condition(eventually(lambda: self.resource(name), is_so, seconds=seconds), kind)

    def wait_ready(self, name: str, seconds: float = READY_SECONDS) -> None:
        """`kubectl wait --for=condition=Ready`, then `wait_routed`; its error has the reason."""
        wait = ("wait", "--for=condition=Ready", f"modeldeployment/{name}", f"--timeout={int(seconds)}s")
        try:
            self.kubectl(*wait)
        except KubectlError as error:
            conditions = json.dumps(self.conditions(name), indent=1)
            states = json.dumps([pod.get("status") for pod in self.pods(name)], indent=1)
            raise AssertionError(f"{error}\n{conditions}\n{states}") from error
        self.wait_routed(name)

    def wait_routed(self, name: str) -> None:
        """Until every router counts all ready workers of it as ready.

        Conditions promise that every router knows one worker; the balance of a test may need all of them.
        """
        eventually(lambda: self._strangers_to(name), [])

    def _strangers_to(self, name: str) -> list[str]:
        """Ready routers that do not know all ready workers of a ModelDeployment."""
        workers = {pod["metadata"]["uid"] for pod in self.pods(name) if is_ready(pod)}
        routers = [pod for pod in self.release_pods("router") if is_ready(pod)]
        return [pod["metadata"]["name"] for pod in routers if not workers <= self.epochs_in(pod).keys()]

    def epochs_in(self, router: Mapping[str, Any]) -> dict[str, str]:
        """Workers that a router counts as ready: their epochs by uid; none while it does not answer."""
        url = self.forwarder.to(router["status"]["podIP"], ROUTER_PORT)
        headers = {"authorization": f"Bearer {self.operator_token}"}
        try:
            answer = httpx.get(
                f"{url}/internal/fleet", headers=headers, timeout=10, verify=NO_TLS, trust_env=False
            )
        except httpx.HTTPError:
            return {}
        endpoints = answer.raise_for_status().json()["endpoints"]
        return {endpoint["uid"]: endpoint["epoch"] for endpoint in endpoints if endpoint["ready"]}

    def pods(self, name: str) -> list[dict[str, Any]]:
        """Worker pods of a ModelDeployment, also those that are ending."""
        return self._pods(self.namespace, f"warmfleet.dev/model-deployment={name}")

    def release_pods(self, component: str) -> list[dict[str, Any]]:
        """Pods of the release: `router` or `operator`."""
        return self._pods(self.release_namespace, f"app.kubernetes.io/component={component}")

    def _pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.cluster.read(namespace, "pods", labelSelector=selector)["items"]
        return found

    def post(self, model: str, text: str, **fields: Any) -> httpx.Response:
        """What the router answers to one plain, greedy request."""
        return httpx.post(
            f"{self.router_url}/v1/chat/completions",
            json=chat_request(model, text, **fields),
            timeout=60,
            verify=NO_TLS,
            trust_env=False,
        )

    def chat(self, model: str, text: str, **fields: Any) -> dict[str, Any]:
        """The decoded answer to such a request."""
        response = self.post(model, text, **fields)
        assert response.status_code == httpx.codes.OK, f"{response.status_code}: {response.text}"
        answer: dict[str, Any] = response.json()
        return answer

    def upgrade(self, *flags: str) -> None:
        """`helm upgrade` with the values so far and these; waits for Deployments."""
        helm(self.cluster, "upgrade", *flags, "--reuse-values")


def tiny_deployment(name: str, *, replicas: int = 1, **spec: Any) -> dict[str, Any]:
    """A ModelDeployment of the tiny model; `spec` adds fields, or replaces them as a whole."""
    return {
        "apiVersion": "warmfleet.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"servedNames": [name], "source": {"image": {"reference": TINY_IMAGE}}},
            "engine": {"dtype": "Float32", "maxModelLengthTokens": 512},
            "kvCache": {"size": "8Mi"},
            "replicas": replicas,
            "rollout": {"drainTimeoutSeconds": 30},
            **spec,
        },
    }


def chat_request(model: str, text: str, **fields: Any) -> dict[str, Any]:
    """A greedy chat request."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 16,
        **fields,
    }


def helm(cluster: DevCluster, command: str, *flags: str) -> str:
    """`helm install|upgrade` of the chart in this tree, with the images of the devcluster."""
    return cluster.helm(
        command,
        RELEASE,
        str(CHART),
        *("--namespace", RELEASE_NAMESPACE),
        *("-f", str(cluster.folder.images_values)),
        *("--wait", "--timeout", "120s"),
        *flags,
    )


@contextmanager
def installed_chart(cluster: DevCluster, values: Mapping[str, Any] = QUICK_VALUES) -> Iterator[Installed]:
    """The chart installed, its pods ready; uninstalled afterwards."""
    with tempfile.TemporaryDirectory(prefix="wf-installed-") as scratch:
        model = tiny_served_model(Path(scratch) / "tiny")
        for path in model.iterdir():
            path.chmod(0o644)  # safetensors keeps its files to itself; images are for any user
        cluster.add_image(TINY_IMAGE, folder=str(model))
        values_file = Path(scratch) / "values.json"
        values_file.write_text(json.dumps(values))
        helm(cluster, "install", "--create-namespace", "-f", str(values_file))
        service = cluster.get("service", "warmfleet-router", "-n", RELEASE_NAMESPACE)
        keys = cluster.get("secret", f"{RELEASE}-root-keys", "-n", RELEASE_NAMESPACE)["data"]
        operator_token = base64.b64decode(keys[ROOT_KEYS_OPERATOR_TOKEN]).decode()
        forwarder = LoopbackForwarder(cluster.network)
        try:
            url = forwarder.to(service["spec"]["clusterIP"], service["spec"]["ports"][0]["port"])
            yield Installed(cluster, forwarder, url, operator_token)
        finally:
            forwarder.close()
            cluster.helm("uninstall", RELEASE, "--namespace", RELEASE_NAMESPACE)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod is ready and stays."""
    conditions = pod["status"].get("conditions", [])
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]


def _condition(resource: Mapping[str, Any], kind: str) -> dict[str, Any]:
    listed = resource.get("status", {}).get("conditions", [])
    return next((condition for condition in listed if condition["type"] == kind), {})
