"""What clients lose when the API server is away or a whole node goes: in a cluster of these tests' own."""

import json
import os
import signal
import time
from collections.abc import Iterator

import pytest

from warmfleet_testing.cluster.cluster import eventually, running_cluster
from warmfleet_testing.cluster.installed import Installed, installed_chart, tiny_deployment
from warmfleet_testing.cluster.pod_faults import program_of
from warmfleet_testing.cluster.steady_load import OpenStream, SteadyLoad, steady_load
from warmfleet_testing.documents.fault_table import losses

NAME = "faulty"
TOKENS = 48
SLOW = "slow"
"""A deployment whose streams are still open when their node is killed, on a fast machine, too."""
LONG_TOKENS = 900
PROMPTS = tuple(f"A long walk along the river, part {number}. What is next?" for number in range(8))
API_SERVER_AWAY_SECONDS = 60.0
NODE_GRACE_SECONDS = 90
"""Longer than the API server is away: see the controller manager's flags."""

pytestmark = pytest.mark.timeout(600)  # a cluster, a minute without its API server, and a rollout


@pytest.fixture(scope="module")
def fleet() -> Iterator[Installed]:
    """Two workers of the tiny model, one on each node."""
    with (
        running_cluster(node_grace_seconds=NODE_GRACE_SECONDS) as cluster,
        installed_chart(cluster) as installed,
        installed.within("outages") as models,
    ):
        models.apply(tiny_deployment(NAME, replicas=2))
        models.wait_ready(NAME)
        yield models


def goes_on(load: SteadyLoad, answers: int = 5) -> None:
    """Until so many more streams have ended well."""
    after = complete(load) + answers
    eventually(lambda: complete(load), lambda count: count >= after, seconds=120)


def complete(load: SteadyLoad) -> int:
    return sum(answer.complete for answer in load.answers)


def worker_uids(fleet: Installed) -> set[str]:
    return {pod["metadata"]["uid"] for pod in fleet.pods(NAME)}


def text_of(fleet: Installed, prompt: str) -> str:
    answer = fleet.chat(NAME, prompt, max_tokens=TOKENS, ignore_eos=True)
    return str(answer["choices"][0]["message"]["content"])


def test_an_api_server_that_is_away_for_a_minute_costs_no_request(fleet: Installed) -> None:
    allowed = losses("test_an_api_server_that_is_away_for_a_minute_costs_no_request")
    undisturbed = {prompt: text_of(fleet, prompt) for prompt in PROMPTS}
    before = worker_uids(fleet)
    with steady_load(fleet.router_url, NAME, PROMPTS, tokens=TOKENS) as load:
        goes_on(load)
        with fleet.cluster.stopped_api_server():
            time.sleep(API_SERVER_AWAY_SECONDS)
            goes_on(load)
        patch = {"spec": {"engine": {"maxRunningSequences": 32}}}
        fleet.kubectl("patch", "modeldeployment", NAME, "--type=merge", "-p", json.dumps(patch))
        eventually(lambda: worker_uids(fleet), lambda now: len(now) == 2 and not now & before, seconds=120)
        fleet.wait_ready(NAME)
        goes_on(load)

    silent = fleet.cluster.get("events", "-A", "--field-selector", "reason=NodeNotReady")["items"]
    assert [event["message"] for event in silent] == []
    assert len(load.failed) <= allowed["failed requests"], [answer.error for answer in load.failed]
    assert [a for a in load.answers if a.complete and a.text != undisturbed[a.prompt]] == []


def test_a_worker_that_dies_while_the_api_server_is_unreachable_costs_only_its_streams(
    fleet: Installed,
) -> None:
    allowed = losses("test_a_worker_that_dies_while_the_api_server_is_unreachable_costs_only_its_streams")
    victim = fleet.pods(NAME)[0]
    routers = fleet.release_pods("router")
    program = program_of(victim, "warmfleet_worker")

    def lives() -> set[str | None]:
        """Its epochs in all routers; None where it is not ready."""
        return {fleet.epochs_in(router).get(victim["metadata"]["uid"]) for router in routers}

    (first_life,) = lives()
    with steady_load(fleet.router_url, NAME, PROMPTS, tokens=TOKENS) as load:
        goes_on(load)
        with fleet.cluster.stopped_api_server():
            eventually(lambda: load.open >= 1)
            in_flight = load.open
            os.kill(program, signal.SIGKILL)
            killed = time.monotonic()
            goes_on(load)
            # Its node starts it again and the routers find it, by what all of them know.
            eventually(lives, lambda now: not now & {first_life, None}, seconds=120)
            goes_on(load)

    failed = [(answer.sent - killed, answer.error) for answer in load.failed]
    assert [error for _, error in failed if "replica_lost" not in error] == []
    assert len(failed) <= min(in_flight + 1, allowed["streams that end with an error object"]), failed
    assert len([sent for sent, _ in failed if sent > 1]) == allowed["failed requests"], failed


def test_a_node_that_is_gone_costs_only_the_streams_on_it(fleet: Installed) -> None:
    allowed = losses("test_a_node_that_is_gone_costs_only_the_streams_on_it")
    # By PyTorch: the native step would be done with the streams before the node is killed.
    engine = {"dtype": "Float16", "maxModelLengthTokens": 1024}
    fleet.apply(tiny_deployment(SLOW, replicas=2, engine=engine))
    fleet.wait_ready(SLOW)
    assert {pod["spec"]["nodeName"] for pod in fleet.pods(SLOW)} == {"node-0", "node-1"}
    router = next(pod for pod in fleet.release_pods("router") if pod["spec"]["nodeName"] == "node-0")
    url = fleet.forwarder.to(router["status"]["podIP"], 8080)
    with steady_load(url, SLOW, PROMPTS, tokens=TOKENS) as load:
        goes_on(load)
        node = fleet.cluster.component("node-1").pid
        streams = [OpenStream(url, SLOW, f"Story {n}: {PROMPTS[n]}", tokens=LONG_TOKENS) for n in range(8)]
        eventually(lambda: all(stream.answer.events > 2 or not stream.is_open for stream in streams))
        in_flight = load.open + sum(stream.is_open for stream in streams)
        os.kill(node, signal.SIGKILL)
        killed = time.monotonic()
        goes_on(load, 50)
    answers = [*load.answers, *(stream.wait() for stream in streams)]

    failed = [(a.sent - killed, a.ended - killed, a.error) for a in answers if a.error]
    assert failed, "nothing was lost: no stream was on that node"
    assert [error for _, _, error in failed if "replica_lost" not in error] == []
    assert len(failed) <= min(in_flight + 1, allowed["streams that end with an error object"]), failed
    assert all(ended <= allowed["seconds until they end"] for _, ended, _ in failed), failed
    assert len([sent for sent, _, _ in failed if sent >= 5]) == allowed["failed requests"], failed
