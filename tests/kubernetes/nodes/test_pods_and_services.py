"""A devcluster's nodes as pods meet them: Services and their names, volumes, images."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from warmfleet_testing.cluster.cluster import DevCluster, eventually
from warmfleet_testing.cluster.control_plane import KubectlError
from warmfleet_testing.processes.plain_http import NO_TLS

IMAGE = "registry.devcluster.local/warmfleet/warmfleet-router:0.1.0"
ASK = """
import time, urllib.request
end = time.monotonic() + 60
def ask(host):
    return urllib.request.urlopen(f"http://{host}/", timeout=10).read().decode()
def first_answer(host):
    while True:
        try:
            return ask(host)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
"""
"""A ready pod becomes an endpoint a moment later: until then its Service refuses connections."""


@pytest.fixture
def namespace(cluster: DevCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name.replace("_", "-")[5:60].strip("-")
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("-n", name, "wait", "--for=create", "--timeout=60s", "serviceaccount/default")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


def container(script: str, **fields: Any) -> dict[str, Any]:
    return {"name": "main", "image": IMAGE, "command": ["python", "-c", script], **fields}


def job(name: str, script: str, **pod: Any) -> dict[str, Any]:
    volumes = pod.pop("volumeMounts", [])
    spec = {"restartPolicy": "Never", "containers": [container(script, volumeMounts=volumes)], **pod}
    template = {"spec": spec}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": template},
    }


def web(name: str, replicas: int) -> list[dict[str, Any]]:
    """Pods that answer with their own name, behind a Service on port 80."""
    script = (
        "import http.server, os\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "        self.wfile.write(os.uname().nodename.encode())\n"
        "http.server.ThreadingHTTPServer(('0.0.0.0', 8000), H).serve_forever()\n"
    )
    probe = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1}
    main = container(script, ports=[{"name": "http", "containerPort": 8000}], readinessProbe=probe)
    labels = {"app": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [main], "terminationGracePeriodSeconds": 1},
    }
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": labels, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
        },
    ]


def apply(cluster: DevCluster, namespace: str, *items: dict[str, Any]) -> None:
    documents = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    cluster.kubectl("-n", namespace, "apply", "-f", "-", input=documents)


def output_of(cluster: DevCluster, namespace: str, name: str) -> str:
    cluster.kubectl("-n", namespace, "wait", "--for=condition=Complete", f"job/{name}", "--timeout=110s")
    return cluster.kubectl("-n", namespace, "logs", f"job/{name}")


def test_every_node_is_ready_with_its_pretended_resources(cluster: DevCluster) -> None:
    nodes = cluster.get("nodes")["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node-0", "node-1"]
    for node in nodes:
        assert {c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"} == {"True"}
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "2"


def test_a_pod_reaches_every_pod_of_a_service_by_each_of_its_names(
    cluster: DevCluster, namespace: str
) -> None:
    apply(cluster, namespace, *web("web", 2))
    cluster.kubectl("-n", namespace, "rollout", "status", "deployment/web", "--timeout=60s")
    pods = {pod["metadata"]["name"] for pod in cluster.get("pods", "-n", namespace)["items"]}
    script = (
        f"{ASK}first_answer('web')\n"
        "seen = set()\n"
        "while len(seen) < 2 and time.monotonic() < end:\n"
        "    seen |= {ask(f'web{ending}') for ending in ('', '.NS', '.NS.svc', '.NS.svc.cluster.local')}\n"
        "print(*seen)\n"
    )
    apply(cluster, namespace, job("asks", script.replace("NS", namespace)))
    assert set(output_of(cluster, namespace, "asks").split()) == pods


def test_a_user_reaches_a_service_by_port_forward(cluster: DevCluster, namespace: str) -> None:
    apply(cluster, namespace, *web("shown", 1))
    cluster.kubectl("-n", namespace, "rollout", "status", "deployment/shown", "--timeout=60s")
    with cluster.port_forward("service/shown", 80, namespace=namespace) as url:
        answers = [httpx.get(url, verify=NO_TLS).text for _ in range(3)]
    assert all(answer.startswith("shown-") for answer in answers)


def test_a_pod_that_meets_itself_behind_its_service_gets_its_answer(
    cluster: DevCluster, namespace: str
) -> None:
    apply(cluster, namespace, *web("alone", 1))
    cluster.kubectl("-n", namespace, "rollout", "status", "deployment/alone", "--timeout=60s")
    script = f"{ASK}print(first_answer('alone'))"
    answer = cluster.kubectl("-n", namespace, "exec", "deployment/alone", "--", "python", "-c", script)
    assert answer.strip().startswith("alone-")


def test_a_claim_gets_a_volume_that_outlives_its_pod_and_goes_with_the_claim(
    cluster: DevCluster, namespace: str
) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "kept"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volume = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "kept"}}]}
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/kept"}]}
    apply(
        cluster,
        namespace,
        claim,
        job("writes", "open('/kept/x', 'w').write('still here')", **volume, **mounts),
    )
    output_of(cluster, namespace, "writes")
    apply(cluster, namespace, job("reads", "print(open('/kept/x').read())", **volume, **mounts))
    assert output_of(cluster, namespace, "reads").strip() == "still here"
    name = cluster.get("pvc", "kept", "-n", namespace)["spec"]["volumeName"]
    assert (cluster.folder.volumes / name / "x").read_text() == "still here"

    cluster.kubectl("-n", namespace, "delete", "job", "--all")
    cluster.kubectl("-n", namespace, "delete", "pvc", "kept", "--timeout=100s")
    eventually((cluster.folder.volumes / name).exists, False)
    eventually(lambda: name in [volume["metadata"]["name"] for volume in cluster.get("pv")["items"]], False)


def test_an_image_that_is_not_on_the_list_cannot_be_pulled(cluster: DevCluster, namespace: str) -> None:
    stranger = {"name": "main", "image": "registry.example.com/stranger:1"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger"},
        "spec": {"containers": [stranger]},
    }
    apply(cluster, namespace, pod)

    def reason() -> str:
        found = cluster.get("pod", "stranger", "-n", namespace)["status"].get("containerStatuses", [{}])
        return found[0].get("state", {}).get("waiting", {}).get("reason", "")

    eventually(reason, lambda seen: "ImagePull" in seen)


def test_an_unknown_pod_is_a_clear_error(cluster: DevCluster) -> None:
    with pytest.raises(KubectlError, match="not found"):
        cluster.kubectl("logs", "missing")
