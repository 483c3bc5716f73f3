"""Stub workers that a router finds in a real API server: hand-made EndpointSlices point to them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pyroute2 import IPRoute

from warmfleet_contracts.cache.worker_tokens import namespace_key, worker_token
from warmfleet_contracts.names import API_VERSION, HTTP_PORT_NAME, KIND, MODEL_DEPLOYMENT_LABEL
from warmfleet_router.discovery.kubernetes import ClusterSettings, KubernetesDiscovery
from warmfleet_runtime.kubernetes.informer import WatchTiming
from warmfleet_testing.cluster.model_deployment_api import Answer, ModelDeploymentApi
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

ROOT: Final = bytes(range(32))
ADDRESS: Final = "198.18.77.1"
"""For benchmarks of networks, by RFC 2544. An API server refuses loopback addresses in EndpointSlices."""
QUICK: Final = WatchTiming(watch_seconds=2.0, slack_seconds=1.0, longest_backoff_seconds=0.5)


@contextmanager
def worker_address() -> Iterator[str]:
    """An address of this machine that is not of its loopback network; gone afterwards."""
    with IPRoute() as routes:
        (loopback,) = routes.link_lookup(ifname="lo")
        # A run that was killed may have left it.
        routes.addr("replace", index=loopback, address=ADDRESS, prefixlen=32)
        try:
            yield ADDRESS
        finally:
            routes.addr("delete", index=loopback, address=ADDRESS, prefixlen=32)


@contextmanager
def pod(
    uid: str, namespace: str, *, of: str = "smol", name: str = "chat", port: int = 0, **fields: Any
) -> Iterator[StubWorker]:
    """A worker as its pod would be: with the token of its uid and its deployment's names."""
    token = worker_token(namespace_key(ROOT, namespace), uid).decode()
    aliases = (f"{namespace}/{of}",)
    stub = StubWorker(
        uid=uid, served_name=name, aliases=aliases, token=token, host=ADDRESS, port=port, **fields
    )
    with running_stub(stub) as running:
        yield running


@dataclass(frozen=True)
class SlicedPod:
    """A pod as an EndpointSlice names it."""

    uid: str
    port: int
    conditions: tuple[bool, bool, bool] = (True, True, False)
    """Ready, serving, terminating."""


class DiscoveredFleet:
    """Objects in one namespace of a real API server."""

    def __init__(self, api: ModelDeploymentApi) -> None:
        self.api = api
        self.namespace = api.namespace

    def deploy(self, name: str, *served_names: str, **spec: Any) -> None:
        """A ModelDeployment."""
        model = {"servedNames": list(served_names), "source": {"catalog": {"name": "x"}}}
        self._expect(
            self.api.apply(
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "metadata": {"name": name, "namespace": self.namespace},
                    "spec": {"model": model, "kvCache": {"size": "64Mi"}, **spec},
                }
            )
        )

    def delete(self, name: str) -> None:
        self._expect(self.api.delete(name))

    def slice(self, of: str, *pods: StubWorker | SlicedPod, name: str = "") -> None:
        """The pods of a deployment's Service, in one slice per port, as they all may differ in theirs.

        What an earlier call named under the same `name` and is not named again is gone.
        """
        for number in range(4):
            self._put(of, f"{name or of}-{number}", pods[number : number + 1])

    def _put(self, of: str, name: str, pods: Sequence[StubWorker | SlicedPod]) -> None:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices/{name}"
        labels = {MODEL_DEPLOYMENT_LABEL: of, "kubernetes.io/service-name": of}
        self._expect(
            self.api.apply(
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {"name": name, "namespace": self.namespace, "labels": labels},
                    "addressType": "IPv4",
                    "ports": [{"name": HTTP_PORT_NAME, "port": one.port} for one in pods],
                    "endpoints": [_endpoint(one) for one in pods],
                },
                path,
            )
        )

    def discovery(self, home: Path, *, kubeconfig: Path | None = None) -> KubernetesDiscovery:
        """What a router of this namespace would be given."""
        settings = ClusterSettings(
            token_root=ROOT,
            namespaces=(self.namespace,),
            kubeconfig=kubeconfig or self.api.control_plane.kubeconfig,
        )
        return KubernetesDiscovery(settings, home / "router" / "last-good.json", timing=QUICK)

    @staticmethod
    def _expect(answer: Answer) -> None:
        assert answer.accepted, answer.message


def kubeconfig_through(kubeconfig: Path, proxy_url: str, folder: Path) -> Path:
    """The same cluster, reached through a proxy on this machine."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = proxy_url.replace("http://", "https://")
    path = folder / "kubeconfig-through"
    path.write_text(json.dumps(config))
    return path


def kubeconfig_of(kubeconfig: Path, token: str, folder: Path) -> Path:
    """The same cluster as another user: the one of `token`."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    path = folder / "kubeconfig-of"
    path.write_text(json.dumps(config))
    return path


def _endpoint(pod: StubWorker | SlicedPod) -> dict[str, Any]:
    ready, serving, terminating = pod.conditions if isinstance(pod, SlicedPod) else (True, True, False)
    return {
        "addresses": [ADDRESS],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {"kind": "Pod", "name": f"pod-{pod.uid}", "uid": pod.uid},
    }
