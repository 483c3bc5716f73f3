"""What clients notice of changes under them: five greedy streams a second, no client tries again.

The oracle is the undisturbed fleet: every text is the one that it gave before anything was changed.
"""

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest

from warmfleet_contracts.metrics import NUM_REQUESTS_RUNNING
from warmfleet_contracts.names import WORKER_PORT
from warmfleet_testing.cluster.api_client import api_client
from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.installed import Installed, is_ready, tiny_deployment
from warmfleet_testing.cluster.pod_faults import stopped_engine
from warmfleet_testing.cluster.pod_processes import kill_process_of
from warmfleet_testing.cluster.steady_load import OpenStream, SteadyLoad, StreamedAnswer, steady_load
from warmfleet_testing.processes.plain_http import NO_TLS

NAME = "steady"
TOKENS = 48
PROMPTS = tuple(f"A long walk along the river, part {number}. What is next?" for number in range(8))
ROLLOUT_SECONDS = 180.0
ENDPOINT_GONE_SECONDS = 5.0
"""From a container's death until no Service sends to it, on a busy machine."""


@pytest.fixture(scope="module")
def fleet(installed: Installed) -> Iterator[Installed]:
    """Two workers of the tiny model that the tests of this module change one after the other."""
    with installed.within(f"serving-{uuid4().hex[:8]}") as models:
        models.apply(tiny_deployment(NAME, replicas=2))
        models.wait_ready(NAME)
        yield models


@pytest.fixture(scope="module")
def undisturbed(fleet: Installed) -> Mapping[str, str]:
    """What each prompt is answered while nothing happens."""
    return {prompt: text_of(fleet, prompt) for prompt in PROMPTS}


def text_of(fleet: Installed, prompt: str, tokens: int = TOKENS, name: str = NAME) -> str:
    answer = fleet.chat(name, prompt, max_tokens=tokens, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == tokens
    return str(answer["choices"][0]["message"]["content"])


@contextmanager
def no_request_fails(fleet: Installed, undisturbed: Mapping[str, str]) -> Iterator[SteadyLoad]:
    """The body runs under load; no stream fails, and each has the text of an undisturbed run."""
    with steady_load(fleet.router_url, NAME, PROMPTS, tokens=TOKENS) as load:
        eventually(lambda: sum(answer.complete for answer in load.answers), lambda done: done >= 5)
        yield load
        after = len(load.answers) + 5
        eventually(lambda: len(load.answers), lambda count: count >= after)
    assert [answer.error for answer in load.failed] == []
    for answer in load.answers:
        assert answer.text == undisturbed[answer.prompt]


def uids(fleet: Installed, name: str = NAME) -> set[str]:
    return {pod["metadata"]["uid"] for pod in fleet.pods(name)}


def patch(fleet: Installed, name: str, spec: Mapping[str, object]) -> None:
    fleet.kubectl("patch", "modeldeployment", name, "--type=merge", "-p", json.dumps({"spec": spec}))


def rolled_out(fleet: Installed, name: str, before: set[str], replicas: int = 2) -> None:
    """Until every pod is another one than before, and ready for requests."""
    eventually(
        lambda: uids(fleet, name),
        lambda now: len(now) == replicas and not now & before,
        seconds=ROLLOUT_SECONDS,
    )
    fleet.wait_ready(name)


def test_a_rolling_update_costs_no_request(fleet: Installed, undisturbed: Mapping[str, str]) -> None:
    before = uids(fleet)
    with no_request_fails(fleet, undisturbed):
        names = {"servedNames": [NAME, "another-name"]}
        patch(fleet, NAME, {"engine": {"maxRunningSequences": 32}, "model": names})
        rolled_out(fleet, NAME, before)
        assert text_of(fleet, PROMPTS[0], name="another-name") == undisturbed[PROMPTS[0]]


def test_an_upgrade_of_operators_and_routers_costs_no_request_and_no_worker(
    fleet: Installed, undisturbed: Mapping[str, str]
) -> None:
    def release() -> set[str]:
        pods = (*fleet.release_pods("operator"), *fleet.release_pods("router"))
        return {pod["metadata"]["uid"] for pod in pods}

    workers, before = uids(fleet), release()
    with no_request_fails(fleet, undisturbed):
        fleet.upgrade("--set", "operator.logLevel=debug", "--set-string", "router.podAnnotations.rolled=yes")
        eventually(release, lambda now: len(now) == 4 and not now & before, seconds=120)
    assert uids(fleet) == workers


def test_a_drained_node_costs_no_request(fleet: Installed, undisturbed: Mapping[str, str]) -> None:
    cluster = fleet.cluster
    with no_request_fails(fleet, undisturbed):
        try:
            cluster.kubectl(
                "drain",
                "node-1",
                "--ignore-daemonsets",
                "--delete-emptydir-data",
                "--force",
                "--timeout=100s",
            )
            left = {pod["spec"]["nodeName"] for pod in fleet.pods(NAME)}
            fleet.wait_ready(NAME)
        finally:
            cluster.kubectl("uncordon", "node-1")
    assert left == {"node-0"}


def test_scaling_up_and_down_costs_no_request(fleet: Installed, undisturbed: Mapping[str, str]) -> None:
    with no_request_fails(fleet, undisturbed):
        for replicas in (3, 1, 2):
            fleet.kubectl("scale", f"modeldeployment/{NAME}", f"--replicas={replicas}")
            fleet.kubectl(
                "wait",
                f"--for=jsonpath={{.status.readyReplicas}}={replicas}",
                f"modeldeployment/{NAME}",
                "--timeout=110s",
            )
            eventually(lambda wanted=replicas: len(fleet.pods(NAME)) == wanted, seconds=60)
    fleet.wait_ready(NAME)


def test_without_an_operator_requests_are_answered_and_workers_replaced(
    fleet: Installed, undisturbed: Mapping[str, str]
) -> None:
    operator = ("deployment/warmfleet-operator", "-n", fleet.release_namespace)
    fleet.cluster.kubectl("scale", *operator, "--replicas=0")
    try:
        eventually(lambda: fleet.release_pods("operator"), [], seconds=90)
        with no_request_fails(fleet, undisturbed):
            gone, kept = fleet.pods(NAME)
            fleet.kubectl("delete", "pod", gone["metadata"]["name"])
            eventually(lambda: ready_pods(fleet, NAME), 2, seconds=120)
        kill_process_of(kept["metadata"]["uid"], "warmfleet_worker")
        eventually(lambda: restarts(fleet, kept["metadata"]["name"]), 1)
        eventually(lambda: ready_pods(fleet, NAME), 2, seconds=120)
        assert text_of(fleet, PROMPTS[0]) == undisturbed[PROMPTS[0]]
    finally:
        fleet.cluster.kubectl("scale", *operator, "--replicas=2")
        fleet.cluster.kubectl("rollout", "status", *operator, "--timeout=110s")
    fleet.wait_ready(NAME)


def test_a_router_that_is_killed_costs_no_more_than_what_it_held(
    fleet: Installed, undisturbed: Mapping[str, str]
) -> None:
    """Its open connections, and those that come before its endpoint is gone from the Service."""
    victim, other = fleet.release_pods("router")
    with steady_load(fleet.router_url, NAME, PROMPTS, tokens=TOKENS) as load:
        eventually(lambda: sum(answer.complete for answer in load.answers), lambda done: done >= 10)
        killed = time.monotonic()
        kill_process_of(victim["metadata"]["uid"], "warmfleet_router")
        eventually(lambda: restarts(fleet, victim["metadata"]["name"], fleet.release_namespace), 1)
        eventually(lambda: len(load.answers), lambda count: count >= 40)
    assert restarts(fleet, other["metadata"]["name"], fleet.release_namespace) == 0
    for answer in load.answers:
        if answer.error:
            assert answer.ended >= killed
            assert answer.sent <= killed + ENDPOINT_GONE_SECONDS
        else:
            assert answer.text == undisturbed[answer.prompt]
    assert len(load.failed) <= len(load.answers) // 2


def test_an_evicted_only_replica_ends_its_stream_and_is_replaced(models: Installed) -> None:
    tokens = 900
    models.apply(tiny_deployment("alone", engine={"dtype": "Float32", "maxModelLengthTokens": 1024}))
    models.wait_ready("alone")
    undisturbed = text_of(models, PROMPTS[0], tokens, "alone")
    (pod,) = models.pods("alone")
    answer = evicted_in_a_stream(models, "alone", pod, tokens)

    assert answer.error == ""
    assert answer.text == undisturbed
    eventually(lambda: ready_pods(models, "alone"), 1, seconds=120)
    models.wait_routed("alone")
    eventually(lambda: pod["metadata"]["uid"] in uids(models, "alone"), False)
    assert text_of(models, PROMPTS[0], tokens, "alone") == undisturbed

    # Suspended it has no pod, and reports it; resumed it serves as before.
    patch(models, "alone", {"suspend": True})
    models.wait_for("alone", "Ready", "True", "Suspended")
    eventually(lambda: models.pods("alone"), [], seconds=60)
    refused = models.post("alone", PROMPTS[0])
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    patch(models, "alone", {"suspend": False})
    models.wait_ready("alone")
    assert text_of(models, PROMPTS[0], tokens, "alone") == undisturbed


def evicted_in_a_stream(models: Installed, name: str, pod: dict[str, Any], tokens: int) -> StreamedAnswer:
    """The answer to a stream in the middle of which its worker's pod was evicted.

    The engine is stopped meanwhile, so that no stream is over before the eviction is accepted; if one is over
    before the engine is stopped, another one is sent.
    """
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod["metadata"]["name"]},
    }
    path = f"/api/v1/namespaces/{models.namespace}/pods/{pod['metadata']['name']}/eviction"
    with api_client(models.cluster.kubeconfig) as api:
        while True:
            stream = OpenStream(models.router_url, name, PROMPTS[0], tokens=tokens)
            eventually(lambda answer=stream.answer: answer.events, lambda events: events > 2)
            with stopped_engine(pod):
                if running_sequences(models, pod) == 1:
                    api.post(path, json=eviction).raise_for_status()
                    assert stream.is_open
                    break
            stream.wait()
    return stream.wait()


def running_sequences(models: Installed, pod: dict[str, Any]) -> float:
    """Sequences in the batch of a stopped engine, as the last of its reports has it."""
    url = f"{models.forwarder.to(pod['status']['podIP'], WORKER_PORT)}/metrics"

    def engine_metrics() -> list[str]:
        text = httpx.get(url, timeout=30, verify=NO_TLS, trust_env=False).text
        return [line for line in text.splitlines() if line.startswith("vllm:")]

    # What the engine had sent may still be unread: all of it has been read when nothing changes any more.
    lines: list[str] = []
    while lines != (lines := engine_metrics()):
        pass
    (line,) = [line for line in lines if line.startswith(NUM_REQUESTS_RUNNING)]
    return float(line.split()[-1])


def test_with_every_accelerator_taken_a_rollout_needs_max_surge_zero_and_then_completes(
    models: Installed,
) -> None:
    accelerator = {"resourceName": "nvidia.com/gpu", "count": 1}
    only_node = {"kubernetes.io/hostname": "node-0"}  # which has two
    models.apply(tiny_deployment("taken", replicas=2, accelerator=accelerator, nodeSelector=only_node))
    models.wait_ready("taken")
    before = uids(models, "taken")

    patch(models, "taken", {"engine": {"maxRunningSequences": 32}})
    stalled = models.wait_for("taken", "Stalled", "True", "NoRoomForSurge")
    assert "maxSurge: 0" in stalled["message"]
    assert models.conditions("taken")["Available"]["status"] == "True"
    assert before < uids(models, "taken")

    patch(models, "taken", {"rollout": {"maxSurge": 0, "maxUnavailable": 1}})
    rolled_out(models, "taken", before)
    assert models.conditions("taken")["Stalled"]["status"] == "False"


def test_an_upgrade_of_the_worker_image_rolls_one_deployment_at_a_time(
    fleet: Installed, undisturbed: Mapping[str, str]
) -> None:
    cluster = fleet.cluster
    registry, image = "registry.devcluster.local/warmfleet", "warmfleet-worker-cpu"
    current = fleet.pods(NAME)[0]["spec"]["containers"][0]["image"]
    cluster.add_image(f"{registry}/{image}:next", like=current)
    fleet.apply(tiny_deployment("second"))
    fleet.wait_ready("second")
    before = {name: uids(fleet, name) for name in (NAME, "second")}

    def under_way() -> set[str]:
        """Deployments whose pods are being replaced by the new image's."""
        return {
            item["metadata"]["name"]
            for item in fleet.get("deployments")["items"]
            if item["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":next")
            and item["status"].get("updatedReplicas") != item["status"].get("replicas")
        }

    seen: list[set[str]] = []
    with no_request_fails(fleet, undisturbed), ThreadPoolExecutor(1) as beside:
        # Looked at from the beginning: the first may be done when helm has seen all of the release.
        upgrade = beside.submit(fleet.upgrade, "--set", "images.workerCpu.tag=next")

        def all_new() -> bool:
            if upgrade.done():
                upgrade.result()
            seen.append(under_way())
            return not any(uids(fleet, name) & before[name] for name in before)

        eventually(all_new, seconds=ROLLOUT_SECONDS)
        upgrade.result()
        for name in before:
            fleet.wait_ready(name)
    assert max(len(names) for names in seen) == 1
    assert set().union(*seen) == {NAME, "second"}
    assert {pod["spec"]["containers"][0]["image"] for pod in fleet.pods(NAME)} == {f"{registry}/{image}:next"}


def ready_pods(models: Installed, name: str) -> int:
    """Pods that are ready and stay."""
    return sum(is_ready(pod) for pod in models.pods(name))


def restarts(models: Installed, pod: str, namespace: str = "") -> int:
    status = models.cluster.get("pod", pod, "-n", namespace or models.namespace)["status"]
    return int(status["containerStatuses"][0]["restartCount"])
