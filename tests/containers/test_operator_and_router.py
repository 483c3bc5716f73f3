"""The images of operator and router, and the chart's release under a real kubelet."""

import os
import re
import signal
import time
from datetime import datetime

import httpx
import pytest

from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.control_plane import KubectlError
from warmfleet_testing.cluster.installed import is_ready
from warmfleet_testing.containers.builder import reference
from warmfleet_testing.containers.machine import processes_of
from warmfleet_testing.processes.plain_http import NO_TLS

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]

MAX_IMAGE_MB = 250
FIRST_ANSWER_SECONDS = 60
NOWHERE = "localhost/warmfleet/warmfleet-worker-cpu@sha256:" + "0" * 64
MODEL = """
apiVersion: warmfleet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: absent, namespace: models}
spec:
  model: {source: {catalog: {name: smollm2-135m-instruct}}}
  kvCache: {size: 128Mi}
  replicas: 1
"""
WITH_IMAGE = MODEL + f"  engine: {{image: '{NOWHERE}'}}\n"


@pytest.mark.parametrize("target", ["operator", "router"])
def test_an_image_takes_at_most_250_megabytes(store, built, target):
    printed = re.search(rf"warmfleet-{target} +(\d+) MB", built)
    assert printed, built[-500:]
    assert int(printed[1]) <= MAX_IMAGE_MB
    assert store.size_bytes(reference(target)) <= MAX_IMAGE_MB * 1e6


@pytest.mark.parametrize("target", ["operator", "router"])
def test_an_image_has_the_user_the_entry_point_and_the_labels_of_the_tree(store, built, target):
    config = store.inspect(target)["config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["python", "-m", f"warmfleet_{target}"]
    labels = {name.rpartition(".")[2]: text for name, text in config["Labels"].items()}
    assert re.fullmatch(r"[0-9a-f]{40}|unknown", labels["revision"])
    assert labels["version"]
    assert labels["title"] == f"warmfleet {target}"


def test_all_pods_get_ready_within_a_minute_and_no_container_restarts(release, figures):
    waited = []
    for pod in release.pods():
        times = {item["type"]: item["lastTransitionTime"] for item in pod["status"]["conditions"]}
        began, ready = (
            datetime.fromisoformat(text) for text in (pod["metadata"]["creationTimestamp"], times["Ready"])
        )
        waited.append((ready - began).total_seconds())
    figures.add("the last of all pods ready", max(waited))
    assert max(waited) <= FIRST_ANSWER_SECONDS
    # Routers wait for their keys without an error: "Failed" is how a kubelet reports one of an environment.
    events = release.cluster.get("events", "--namespace", "models")["items"]
    assert [event["message"] for event in events if event["reason"] == "Failed"] == []
    assert sorted(release.restarts().values()) == [0, 0, 0, 0]


def test_helm_test_reaches_the_router_by_its_service(release):
    assert "Succeeded" in release.cluster.helm("test", "warmfleet", "--namespace", "models")


def test_a_client_outside_gets_the_list_of_models_through_the_kubelet(release):
    with (
        release.cluster.port_forward("service/warmfleet-router", 80, namespace="models") as url,
        httpx.Client(verify=NO_TLS, timeout=20) as client,
    ):
        assert client.get(f"{url}/v1/models").json() == {"object": "list", "data": []}


@pytest.mark.parametrize("component", ["operator", "router"])
def test_a_container_runs_without_rights_and_cannot_write_its_root(release, component):
    script = (
        "import os, pathlib\n"
        "fields = dict(line.split(':', 1) for line in open('/proc/1/status'))\n"
        "print(os.getuid(), *(fields[name].strip() for name in ('CapEff', 'NoNewPrivs', 'Seccomp')))\n"
        "for place in ('/', '/opt/code', '/tmp'):\n"
        "    try: pathlib.Path(place, 'probe').write_text('x'); print(place, 'written')\n"
        "    except OSError as error: print(place, error.strerror)\n"
    )
    shown = release.kubectl("exec", f"deploy/warmfleet-{component}", "--", "python", "-c", script)
    filtered_by_seccomp = 2
    assert shown.splitlines() == [
        f"65532 {0:016x} 1 {filtered_by_seccomp}",
        "/ Read-only file system",
        "/opt/code Read-only file system",
        "/tmp written",
    ]


def test_no_image_holds_what_built_it(release):
    script = "import shutil; print([n for n in ('gcc', 'cc', 'make', 'uv', 'git') if shutil.which(n)])"
    for component in ("operator", "router"):
        assert (
            release.kubectl("exec", f"deploy/warmfleet-{component}", "--", "python", "-c", script) == "[]\n"
        )


def test_the_network_policies_let_through_what_they_name_and_nothing_else(release):
    release.add_stranger()
    operator, router = (release.pods(component=name)[0] for name in ("operator", "router"))
    from_router = f"pod/{router['metadata']['name']}"
    from_operator = f"pod/{operator['metadata']['name']}"
    operator_ip, router_ip = operator["status"]["podIP"], router["status"]["podIP"]
    stranger_ip = release.cluster.get("pod", "stranger", "--namespace", "models")["status"]["podIP"]
    expected = {
        ("pod/stranger", router_ip, 8080): "connected",
        (from_operator, router_ip, 8080): "connected",
        ("pod/stranger", operator_ip, 8081): "dropped",
        ("pod/stranger", operator_ip, 8082): "dropped",
        (from_router, operator_ip, 8082): "dropped",
        (from_operator, stranger_ip, 8080): "dropped",
        (from_router, stranger_ip, 8000): "dropped",
    }
    assert {path: release.connect(*path) for path in expected} == expected


@pytest.mark.parametrize(("manifest", "named"), [(MODEL, "warmfleet-worker-cpu"), (WITH_IMAGE, NOWHERE)])
def test_a_model_whose_image_is_not_there_stalls_with_the_images_name(release, manifest, named):
    release.cluster.kubectl("apply", "-f", "-", input=manifest)
    try:

        def stalled():
            found = release.cluster.get("modeldeployment", "absent", "--namespace", "models")
            conditions = found.get("status", {}).get("conditions", [])
            return next((item for item in conditions if item["type"] == "Stalled"), {})

        condition = eventually(stalled, lambda item: item.get("status") == "True", seconds=120)
        assert condition["reason"] == "ImagePullFailed"
        assert named in condition["message"]
    finally:
        release.kubectl("delete", "modeldeployment", "absent", "--wait")


def test_a_rolling_restart_of_the_routers_refuses_no_client(release):
    before = {pod["metadata"]["name"] for pod in release.pods(component="router")}
    with release.no_client_refused():
        release.kubectl("rollout", "restart", "deployment/warmfleet-router")
        release.kubectl("rollout", "status", "deployment/warmfleet-router", "--timeout=120s")
        eventually(
            lambda: before.isdisjoint(pod["metadata"]["name"] for pod in release.pods(component="router"))
        )
        for name in before:
            release.kubectl("wait", "--for=delete", f"pod/{name}", "--timeout=120s")
    assert set(release.restarts().values()) == {0}


def logs(release, component):
    """The last line of a component's log; empty while the node does not know the pod."""
    try:
        return release.kubectl("logs", f"deploy/warmfleet-{component}", "--tail=1")
    except KubectlError:
        return ""


@pytest.mark.parametrize("program", ["kubelet", "containerd"])
def test_clients_are_served_while_a_program_of_the_node_is_killed_and_started_again(release, program):
    config = release.node_folder / {"kubelet": "kubelet.json", "containerd": "containerd.toml"}[program]
    (pid,) = eventually(lambda: processes_of(program, config))
    with release.no_client_refused():
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: processes_of(program, config), lambda found: found and found != [pid])
        killed = time.time()

        def renewed():
            lease = release.cluster.get("lease", "node-0", "--namespace", "kube-node-lease")
            return datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp() > killed

        eventually(renewed, seconds=90)
        # A kubelet that has just started knows no pod; then it finds its containers, and they are the same.
        eventually(lambda: logs(release, "router"), seconds=90)
    assert set(release.restarts().values()) == {0}


def test_a_router_that_fills_its_disk_is_evicted_and_replaced(release):
    victim = release.pods(component="router")[0]["metadata"]["name"]
    release.kubectl("exec", victim, "--", "sh", "-c", "head -c 1200M /dev/zero > /tmp/full")
    eventually(
        lambda: release.cluster.read("models", "pod", victim)["status"].get("reason"), "Evicted", seconds=200
    )
    eventually(lambda: len([pod for pod in release.pods(component="router") if is_ready(pod)]), 2)
    release.kubectl("delete", "pod", victim)
    assert set(release.restarts().values()) == {0}
