"""A model that is served by containers: from its image, under memory limits, while replicas go."""

import json
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.containers.air_gapped import image_name
from warmfleet_testing.processes.plain_http import NO_TLS

pytestmark = [pytest.mark.containers, pytest.mark.timeout(2400)]

MAX_IMAGE_MB = 1500
MODEL = "smollm2-135m-instruct"
FIRST_ANSWER_SECONDS = 60
STREAMS = 8


def manifest(name, *, replicas=1, memory_limit=None):
    spec = {
        "model": {"servedNames": [name], "source": {"catalog": {"name": MODEL}}},
        "kvCache": {"size": "128Mi"},
        "replicas": replicas,
    }
    if memory_limit:
        spec["resources"] = {"requests": {"memory": memory_limit}, "limits": {"memory": memory_limit}}
    metadata = {"name": name, "namespace": "models"}
    kind = {"apiVersion": "warmfleet.dev/v1alpha1", "kind": "ModelDeployment"}
    return json.dumps({**kind, "metadata": metadata, "spec": spec})


@pytest.fixture(scope="module")
def served(release, worker_image, figures):
    """Two replicas of a model that is ready; gives the seconds from the manifest to the first answer."""
    began = time.monotonic()
    release.cluster.kubectl("apply", "-f", "-", input=manifest("served", replicas=2))
    release.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "modeldeployment/served")
    with router(release) as client:
        answer = client.post("/v1/completions", json={"model": "served", "prompt": "Once", "max_tokens": 4})
    seconds = time.monotonic() - began
    figures.add("first answer after the manifest of a model", seconds)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4
    yield seconds
    release.kubectl("delete", "modeldeployment", "served", "--wait")


class router:  # noqa: N801 - reads as a function
    """A client of the router's Service, through the kubelet."""

    def __init__(self, release):
        self._forward = release.cluster.port_forward("service/warmfleet-router", 80, namespace="models")

    def __enter__(self):
        self._client = httpx.Client(base_url=self._forward.__enter__(), verify=NO_TLS, timeout=120)
        return self._client

    def __exit__(self, *error):
        self._client.close()
        return self._forward.__exit__(*error)


def test_the_image_with_its_model_takes_at_most_1500_megabytes(store, worker_image, figures):
    size_mb = store.size_bytes(image_name("worker-cpu")) / 1e6
    figures.add("the image of CPU workers, with its model", size_mb, "MB")
    assert size_mb <= MAX_IMAGE_MB


def test_a_model_in_the_image_answers_within_a_minute_of_its_manifest(served, release):
    assert served <= FIRST_ANSWER_SECONDS
    assert set(release.restarts().values()) == {0}


def test_a_worker_runs_without_rights_and_without_a_compiler(served, release):
    script = (
        "import os, shutil\n"
        "fields = dict(line.split(':', 1) for line in open('/proc/1/status'))\n"
        "print(os.getuid(), *(fields[name].strip() for name in ('CapEff', 'NoNewPrivs', 'Seccomp')))\n"
        "print([name for name in ('gcc', 'cc', 'uv') if shutil.which(name)], os.access('/', os.W_OK))\n"
    )
    pod = release.pods(component="worker")[0]["metadata"]["name"]
    shown = release.kubectl("exec", pod, "--", "python", "-c", script)
    assert shown.splitlines() == [f"65532 {0:016x} 1 2", "[] False"]


def test_a_worker_serves_without_pytorch_and_promises_equal_bits(served, release):
    script = "import importlib.util; print(importlib.util.find_spec('torch'))"
    pod = release.pods(component="worker")[0]["metadata"]["name"]
    assert release.kubectl("exec", pod, "--", "python", "-c", script) == "None\n"
    model = release.cluster.get("modeldeployment", "served", "--namespace", "models")
    assert model["status"]["equalBits"] == "Promised"


def test_only_routers_reach_a_worker(served, release):
    release.add_stranger()
    worker = release.pods(component="worker")[0]["status"]["podIP"]
    from_router = f"pod/{release.pods(component='router')[0]['metadata']['name']}"
    assert release.connect(from_router, worker, 8000) == "connected"
    assert release.connect("pod/stranger", worker, 8000) == "dropped"


def test_a_worker_that_is_deleted_finishes_its_streams(served, release):
    begun = threading.Barrier(STREAMS + 1, timeout=120)

    def stream(client, number):
        body = {"model": "served", "prompt": f"Story {number}:", "max_tokens": 200, "ignore_eos": True}
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            lines = (line for line in answer.iter_lines() if line)
            next(lines)
            begun.wait()
            return list(lines)[-1]

    victim = release.pods(component="worker")[0]["metadata"]["name"]
    with router(release) as client, ThreadPoolExecutor(STREAMS) as threads:
        streams = [threads.submit(stream, client, number) for number in range(STREAMS)]
        begun.wait()
        release.kubectl("delete", "pod", victim, "--wait=false")
        assert {one.result() for one in streams} == {"data: [DONE]"}
    release.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "modeldeployment/served")


@contextmanager
def streams_that_all_end_whole(release):
    """Clients that stream one answer after the other; fails unless each of them ended as it should."""
    enough = threading.Event()
    begun = threading.Barrier(STREAMS + 1, timeout=120)

    def ask(client, number):
        body = {"model": "served", "max_tokens": 100, "ignore_eos": True, "stream": True}
        ends, asked = [], 0
        while not enough.is_set():
            asked += 1
            prompt = {"prompt": f"Story {number}, part {asked}:"}
            with client.stream("POST", "/v1/completions", json=body | prompt) as answer:
                lines = [line for line in answer.iter_lines() if line]
                ends.append((answer.status_code, lines[-1]))
            if asked == 1:
                begun.wait()
        return ends

    with router(release) as client, ThreadPoolExecutor(STREAMS) as threads:
        asking = [threads.submit(ask, client, number) for number in range(STREAMS)]
        begun.wait()
        try:
            yield
        finally:
            enough.set()
        ends = [end for one in asking for end in one.result()]
    assert set(ends) == {(200, "data: [DONE]")}
    assert len(ends) > STREAMS


def workers(release):
    return {pod["metadata"]["name"] for pod in release.pods(component="worker")}


def replaced(release, before):
    """Wait until none of the workers `before` is left and two others serve."""
    for name in before:
        release.kubectl("wait", "--for=delete", f"pod/{name}", "--timeout=300s")
    eventually(lambda: workers(release), lambda names: len(names) == 2)
    release.kubectl("wait", "--for=condition=Ready", "--timeout=120s", "modeldeployment/served")


def test_a_rolling_restart_of_the_workers_under_load_cuts_no_stream(served, release):
    before = workers(release)
    patch = {"spec": {"podTemplate": {"metadata": {"annotations": {"restarted": "once"}}}}}
    with streams_that_all_end_whole(release):
        release.kubectl("patch", "modeldeployment", "served", "--type=merge", "-p", json.dumps(patch))
        replaced(release, before)


def test_a_drained_node_lets_workers_finish_their_streams(served, release):
    """One node stands for two: it takes pods again as soon as the first worker has been evicted."""
    before = workers(release)
    drain = ["drain", "node-0", "--pod-selector=app.kubernetes.io/component=worker", "--timeout=300s"]
    kubectl = [release.cluster.binaries["kubectl"], *drain, "--delete-emptydir-data"]
    environment = release.cluster.environment
    with (
        streams_that_all_end_whole(release),
        subprocess.Popen(kubectl, stdout=subprocess.PIPE, text=True, env=environment) as draining,
    ):
        try:
            eventually(lambda: workers(release), lambda names: before - names)
        finally:
            release.cluster.kubectl("uncordon", "node-0")
        output, _ = draining.communicate(timeout=300)
        assert draining.returncode == 0, output
        replaced(release, before)
    assert "node/node-0 drained" in output


@pytest.mark.parametrize(
    ("limit", "exit_code"),
    [
        # More than the engine needs by its own sizes, 448 MiB, and less than it and the server take.
        pytest.param("480Mi", 1, id="the engine process alone is killed"),
        pytest.param("64Mi", 137, id="the container's first process is killed"),
    ],
)
def test_a_worker_beyond_its_memory_limit_stalls_with_the_limit_to_raise(
    release, worker_image, limit, exit_code
):
    release.cluster.kubectl("apply", "-f", "-", input=manifest("small", memory_limit=limit))
    try:

        def stalled():
            found = release.cluster.get("modeldeployment", "small", "--namespace", "models")
            conditions = found.get("status", {}).get("conditions", [])
            return next((item for item in conditions if item["type"] == "Stalled"), {})

        condition = eventually(stalled, lambda item: item.get("status") == "True", seconds=300)
        assert condition["reason"] == "CrashLooping"
        assert f"out of memory (OOMKilled, exit code {exit_code}, limit {limit})" in condition["message"]
        assert "spec.resources.limits.memory" in condition["message"]
    finally:
        release.kubectl("delete", "modeldeployment", "small", "--wait")
