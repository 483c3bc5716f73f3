"""Services, names and the storage class on the real kernel, from inside the cluster's network."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from warmfleet_testing.cluster.control_plane import ControlPlane

SERVER = """
import socket, sys
listener = socket.create_server(("10.10.0.1", int(sys.argv[1])))
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(sys.argv[2].encode())
    connection.close()
"""

CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as connection:
        print(connection.recv(100).decode(), end="")
except OSError as error:
    print(type(error).__name__, end="")
"""

RESOLVE = """
import dns.resolver, sys
resolver = dns.resolver.Resolver(configure=False)
resolver.nameservers = ["10.96.0.10"]
try:
    found = resolver.resolve(sys.argv[1], sys.argv[2], tcp=sys.argv[3] == "tcp")
    print(sorted(record.to_text() for record in found), end="")
except Exception as error:
    print(type(error).__name__, end="")
"""


def inside(control_plane: ControlPlane, script: str, *args: Any) -> str:
    """What a Python script printed inside the cluster's network."""
    return subprocess.run(
        control_plane.inside(sys.executable, "-c", script, *map(str, args)),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout


@contextmanager
def server(control_plane: ControlPlane, port: int, word: str) -> Iterator[None]:
    command = control_plane.inside(sys.executable, "-c", SERVER, str(port), word)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield
        finally:
            process.kill()


def service(name: str, cluster_ip: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"ports": [{"name": "http", "port": 80, "targetPort": 9}]}
    if cluster_ip:
        spec["clusterIP"] = cluster_ip
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def endpoints(name: str, *ports: int, ready: bool = True) -> list[dict[str, Any]]:
    """One slice per port, as it is for a named targetPort that differs between pods."""
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{name}-{port}", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.10.0.1"], "conditions": {"ready": ready}}],
        }
        for port in ports
    ]


def apply(control_plane: ControlPlane, namespace: str, items: list[dict[str, Any]]) -> None:
    documents = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    control_plane.kubectl("-n", namespace, "apply", "-f", "-", input=documents)


@pytest.fixture
def namespace(control_plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.replace("_", "-")[5:60].strip("-")
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


def eventually(read: Any, wanted: Any) -> None:
    deadline = time.monotonic() + 30
    while (seen := read()) != wanted:
        assert time.monotonic() < deadline, seen
        time.sleep(0.1)


def test_a_service_leads_to_every_ready_endpoint(control_plane: ControlPlane, namespace: str) -> None:
    with server(control_plane, 9001, "one"), server(control_plane, 9002, "two"):
        apply(control_plane, namespace, [service("both", "10.96.7.1"), *endpoints("both", 9001, 9002)])
        eventually(lambda: inside(control_plane, CONNECT, "10.96.7.1", 80) in ("one", "two"), True)
        seen = {inside(control_plane, CONNECT, "10.96.7.1", 80) for _ in range(20)}
        assert seen == {"one", "two"}  # one in a million runs sees only one of them

        apply(control_plane, namespace, endpoints("both", 9002, ready=False))
        eventually(lambda: {inside(control_plane, CONNECT, "10.96.7.1", 80) for _ in range(8)}, {"one"})


def test_a_service_without_endpoints_refuses_at_once(control_plane: ControlPlane, namespace: str) -> None:
    apply(control_plane, namespace, [service("empty", "10.96.7.2")])
    eventually(lambda: inside(control_plane, CONNECT, "10.96.7.2", 80), "ConnectionRefusedError")


def test_the_api_server_is_reached_by_its_service(control_plane: ControlPlane) -> None:
    script = 'import ssl; print("BEGIN CERTIFICATE" in ssl.get_server_certificate(("10.96.0.1", 443)))'
    eventually(lambda: inside(control_plane, script).strip(), "True")


def test_names_resolve_over_udp_and_tcp(control_plane: ControlPlane, namespace: str) -> None:
    headless = endpoints("headless", 9001)
    apply(control_plane, namespace, [service("named", "10.96.7.3"), service("headless", "None"), *headless])
    base = f"{namespace}.svc.cluster.local"
    eventually(lambda: inside(control_plane, RESOLVE, f"named.{base}", "A", "udp"), "['10.96.7.3']")
    eventually(lambda: inside(control_plane, RESOLVE, f"headless.{base}", "A", "tcp"), "['10.10.0.1']")
    srv = inside(control_plane, RESOLVE, f"_http._tcp.named.{base}", "SRV", "udp")
    assert srv == f"['0 100 80 named.{base}.']"
    assert inside(control_plane, RESOLVE, f"named.{base}", "AAAA", "udp") == "NoAnswer"
    assert inside(control_plane, RESOLVE, f"missing.{base}", "A", "udp") == "NXDOMAIN"
    assert inside(control_plane, RESOLVE, "example.com", "A", "udp") == "NXDOMAIN"


def test_the_cluster_has_a_default_storage_class_and_its_dns_service(control_plane: ControlPlane) -> None:
    assert "standard (default)" in control_plane.kubectl("get", "storageclass")
    services = control_plane.get("services", "-n", "kube-system")["items"]
    assert [(s["metadata"]["name"], s["spec"]["clusterIP"]) for s in services] == [("kube-dns", "10.96.0.10")]
