"""NetworkPolicies on nodes: of pods that no chart knows, and the policies of the chart and of its models."""

from collections.abc import Iterator
from typing import Any

import pytest

from warmfleet_contracts.names import WORKER_PORT
from warmfleet_testing.cluster.cluster import DevCluster, eventually
from warmfleet_testing.cluster.installed import SCRAPER_LABELS, Installed, is_ready, tiny_deployment
from warmfleet_testing.cluster.pods import IMAGE, Pods, pod

OPEN, CLOSED = 8000, 8001
LISTEN = f"""
import selectors, socket
selector = selectors.DefaultSelector()
for port in ({OPEN}, {CLOSED}):
    selector.register(socket.create_server(("0.0.0.0", port)), selectors.EVENT_READ)
print("listening", flush=True)
while True:
    for key, _ in selector.select():
        key.fileobj.accept()[0].close()
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()
    print("connected")
except TimeoutError:
    print("no answer")
except OSError as error:
    print(type(error).__name__)
"""
DENIED_SECONDS = 1.0
"""A denied connection gets no answer for ever; an allowed one is answered within milliseconds."""
ALLOWED_SECONDS = 30.0


def listening(name: str, **labels: str) -> dict[str, Any]:
    """A pod that listens on both ports."""
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["python", "-c", LISTEN],
        "ports": [{"name": "open", "containerPort": OPEN}],
        "readinessProbe": {"tcpSocket": {"port": OPEN}, "periodSeconds": 1},
    }
    manifest = pod(name, container)
    manifest["metadata"]["labels"] |= labels
    return manifest


def policy(name: str, selects: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": app(selects), "policyTypes": [key.title() for key in spec], **spec},
    }


def app(name: str) -> dict[str, Any]:
    return {"matchLabels": {"app": name}}


class ConnectingPods(Pods):
    """Pods, and what they reach."""

    def address(self, name: str) -> str:
        return str(self.get("pod", name)["status"]["podIP"])

    def connects(self, name: str, address: str, port: int, seconds: float = ALLOWED_SECONDS) -> str:
        """What a connection from the pod comes to."""
        return self.kubectl(
            "exec", name, "--", "python", "-c", CONNECT, address, str(port), str(seconds)
        ).strip()

    def is_refused_an_answer(self, name: str, address: str, port: int) -> None:
        """Also shortly after the policy was made."""
        eventually(lambda: self.connects(name, address, port, DENIED_SECONDS), "no answer")


@pytest.fixture
def pods(cluster: DevCluster) -> Iterator[ConnectingPods]:
    pods = ConnectingPods(cluster, "network-policies")
    cluster.kubectl("create", "namespace", pods.namespace)
    pods.kubectl("wait", "--for=create", "--timeout=60s", "serviceaccount/default")
    yield pods
    cluster.kubectl("delete", "namespace", pods.namespace, "--wait=false")


def test_a_pod_is_reached_and_reaches_only_as_policies_allow(pods: ConnectingPods) -> None:
    names = ("server", "friend", "foreign")
    pods.apply(*map(listening, names))
    for name in names:
        pods.ready(name)
    server, foreign = pods.address("server"), pods.address("foreign")
    assert pods.connects("foreign", server, CLOSED) == "connected"

    # Inwards: one pod, on one port, by its name.
    allowed = {"from": [{"podSelector": app("friend")}], "ports": [{"port": "open"}]}
    pods.apply(policy("to-server", "server", ingress=[allowed]))
    pods.is_refused_an_answer("foreign", server, OPEN)
    pods.is_refused_an_answer("friend", server, CLOSED)
    assert pods.connects("friend", server, OPEN) == "connected"
    assert pods.connects("server", foreign, CLOSED) == "connected"
    assert pods.connects("server", server, CLOSED) == "connected"

    # Outwards: everything but one pod; the API server is an address like others, DNS a pod of the system's.
    block = {"cidr": "10.0.0.0/8", "except": [f"{foreign}/32", "10.96.0.10/32"]}
    pods.apply(policy("from-friend", "friend", egress=[{"to": [{"ipBlock": block}]}]))
    pods.is_refused_an_answer("friend", foreign, OPEN)
    pods.is_refused_an_answer("friend", "10.96.0.10", 53)
    assert pods.connects("friend", server, OPEN) == "connected"
    assert pods.connects("friend", "10.96.0.1", 443) == "connected"

    # Without them everything is open again.
    pods.apply(policy("to-server", "server", ingress=[{}]), policy("from-friend", "friend", egress=[{}]))
    eventually(lambda: pods.connects("friend", foreign, OPEN), "connected")
    eventually(lambda: pods.connects("foreign", server, CLOSED), "connected")


def test_workers_are_reached_by_routers_and_scrapers_and_by_no_other_pod(models: Installed) -> None:
    models.apply(tiny_deployment("guarded"), listening("foreign"), listening("scraper", **SCRAPER_LABELS))
    models.wait_ready("guarded")
    (worker,) = models.pods("guarded")
    address = worker["status"]["podIP"]
    (router, *_) = [one for one in models.release_pods("router") if is_ready(one)]
    namespaces = (models.namespace, models.release_namespace)
    own, release = (ConnectingPods(models.cluster, name) for name in namespaces)
    for name in ("foreign", "scraper"):
        own.ready(name)

    own.is_refused_an_answer("foreign", address, WORKER_PORT)
    assert own.connects("scraper", address, WORKER_PORT) == "connected"
    assert release.connects(router["metadata"]["name"], address, WORKER_PORT) == "connected"
    # A worker itself reaches DNS and nothing else, a router no pod but workers.
    own.is_refused_an_answer(worker["metadata"]["name"], own.address("foreign"), OPEN)
    assert own.connects(worker["metadata"]["name"], "10.96.0.10", 53) == "connected"
    release.is_refused_an_answer(router["metadata"]["name"], own.address("foreign"), OPEN)
