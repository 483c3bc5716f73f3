"""What clients of a fleet in a cluster lose when one of its parts dies, hangs or is taken away."""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import httpx
import pytest

from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.installed import Installed, chat_request, is_ready, tiny_deployment
from warmfleet_testing.cluster.pod_faults import kill_program, program_of
from warmfleet_testing.cluster.steady_load import OpenStream, SteadyLoad, steady_load
from warmfleet_testing.documents.fault_table import losses
from warmfleet_testing.processes.plain_http import NO_TLS

NAME = "faulty"
KINDS = "serviceaccounts,networkpolicies,services,poddisruptionbudgets,deployments"
PROMPTS = tuple(f"A long walk along the river, part {number}. What is next?" for number in range(8))


@pytest.fixture(scope="module")
def fleet(installed: Installed) -> Iterator[Installed]:
    """Two workers of the tiny model, one on each node."""
    with installed.within(f"faults-{uuid4().hex[:8]}") as models:
        models.apply(tiny_deployment(NAME, replicas=2))
        models.wait_ready(NAME)
        assert {pod["spec"]["nodeName"] for pod in models.pods(NAME)} == {"node-0", "node-1"}
        yield models


@pytest.fixture(autouse=True)
def whole_again(fleet: Installed) -> Iterator[None]:
    """Nothing of one test's fault is left in the next."""
    yield
    eventually(
        lambda: [pod["metadata"]["name"] for pod in fleet.pods(NAME) if not is_ready(pod)], [], seconds=60
    )


def restarts(pod: Mapping[str, Any]) -> int:
    return sum(int(status["restartCount"]) for status in pod["status"].get("containerStatuses", ()))


def on_node(pods: list[dict[str, Any]], node: str) -> dict[str, Any]:
    return next(pod for pod in pods if pod["spec"]["nodeName"] == node)


def goes_on(load: SteadyLoad, answers: int = 5) -> None:
    """Until so many more streams have ended well."""
    after = complete(load) + answers
    eventually(lambda: complete(load), lambda count: count >= after, seconds=120)


def complete(load: SteadyLoad) -> int:
    return sum(answer.complete for answer in load.answers)


def errors(load: SteadyLoad) -> list[str]:
    return [answer.error for answer in load.failed]


def status_of(url: str, model: str) -> int:
    body = chat_request(model, "hello", max_tokens=1)
    return httpx.post(
        f"{url}/v1/chat/completions", json=body, timeout=60, verify=NO_TLS, trust_env=False
    ).status_code


def test_an_operator_killed_in_the_middle_of_a_rollout_costs_nothing(fleet: Installed) -> None:
    allowed = losses("test_an_operator_killed_in_the_middle_of_a_rollout_costs_nothing")
    cluster = fleet.cluster
    before = {pod["metadata"]["uid"] for pod in fleet.pods(NAME)}
    lease = cluster.get("lease", "warmfleet-operator", "-n", fleet.release_namespace)
    leader = lease["spec"]["holderIdentity"]

    with steady_load(fleet.router_url, NAME, PROMPTS) as load:
        goes_on(load)
        patch = {"spec": {"engine": {"maxRunningSequences": 32}}}
        fleet.kubectl("patch", "modeldeployment", NAME, "--type=merge", "-p", json.dumps(patch))
        eventually(lambda: {pod["metadata"]["uid"] for pod in fleet.pods(NAME)} - before)
        kill_program(
            next(pod for pod in fleet.release_pods("operator") if pod["metadata"]["name"] == leader),
            "warmfleet_operator",
        )
        eventually(
            lambda: {pod["metadata"]["uid"] for pod in fleet.pods(NAME)},
            lambda now: len(now) == 2 and not now & before,
            seconds=180,
        )
        fleet.wait_ready(NAME)
        goes_on(load)

    assert len(load.failed) <= allowed["failed requests"], errors(load)
    deployment = fleet.resource(NAME)
    assert deployment["status"]["observedGeneration"] == deployment["metadata"]["generation"]


def test_a_worker_killed_in_the_middle_of_its_streams_costs_only_these(fleet: Installed) -> None:
    allowed = losses("test_a_worker_killed_in_the_middle_of_its_streams_costs_only_these")
    victim = on_node(fleet.pods(NAME), "node-0")
    with steady_load(fleet.router_url, NAME, PROMPTS, tokens=96) as load:
        goes_on(load)
        program = program_of(victim, "warmfleet_worker")  # takes time in which streams begin
        eventually(lambda: load.open >= 1)
        in_flight = load.open
        os.kill(program, signal.SIGKILL)
        killed = time.monotonic()
        goes_on(load)
        eventually(lambda: any(restarts(pod) and is_ready(pod) for pod in fleet.pods(NAME)), seconds=120)
        goes_on(load)

    assert [error for error in errors(load) if "replica_lost" not in error] == []
    assert len(load.failed) <= in_flight + 1
    assert len(load.failed) <= allowed["streams that end with an error object"]
    assert len([a for a in load.failed if a.sent > killed + 1]) == allowed["failed requests"]
    assert {pod["metadata"]["uid"] for pod in fleet.pods(NAME)} >= {victim["metadata"]["uid"]}


def test_a_deployment_deleted_under_traffic_ends_its_streams_whole(installed: Installed) -> None:
    allowed = losses("test_a_deployment_deleted_under_traffic_ends_its_streams_whole")
    with installed.within(f"deleted-{uuid4().hex[:8]}") as models:
        # By PyTorch: the native step would be done with the streams before `kubectl` has begun.
        engine = {"dtype": "Float16", "maxModelLengthTokens": 1024}
        models.apply(tiny_deployment("leaving", engine=engine))
        models.wait_ready("leaving")
        streams = [OpenStream(models.router_url, "leaving", text, tokens=900) for text in PROMPTS[:4]]
        eventually(lambda: all(stream.answer.events > 2 for stream in streams))
        still_open = sum(stream.is_open for stream in streams)
        models.kubectl("delete", "modeldeployment", "leaving", "--wait=false")
        eventually(lambda: status_of(models.router_url, "leaving"), lambda status: status in {404, 503})
        answers = [stream.wait() for stream in streams]

        assert still_open > 0
        assert len([answer for answer in answers if answer.error]) == allowed["failed requests"], [
            answer.error for answer in answers
        ]
        eventually(lambda: status_of(models.router_url, "leaving"), 404)
        eventually(lambda: models.pods("leaving"), [], seconds=120)
        of_it = ("-l", "warmfleet.dev/model-deployment=leaving")
        eventually(lambda: len(models.get(KINDS, *of_it)["items"]), allowed["objects left"])
