"""A fleet of real workers that follows its load, under the chart's operator, roles and admission policy."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from warmfleet_contracts.names import DELETION_COST_ANNOTATION
from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.installed import Installed, is_ready, tiny_deployment

NAME = "elastic"
SEATS = 2
CLIENTS = 5
"""More than the seats of one worker; fewer wait than `STANDING_REQUESTS`, so that none is refused."""
SCALING = {
    "mode": "Active",
    "maxReplicas": 2,
    "scaleUp": {"stabilizationSeconds": 1, "panicSeconds": 1},
    "scaleDown": {"stabilizationSeconds": 4, "periodSeconds": 1},
}


@contextmanager
def clients(fleet: Installed, count: int) -> Iterator[None]:
    """So many clients that each send a request when the one before is answered; every answer is whole."""
    stop = threading.Event()

    def requests(client: int) -> int:
        sent = 0
        while not stop.is_set():
            prompt = f"Client {client} asks about part {sent}."
            answer = fleet.chat(NAME, prompt, max_tokens=200, ignore_eos=True)
            assert answer["usage"]["completion_tokens"] == 200
            sent += 1
        return sent

    with ThreadPoolExecutor(count) as pool:
        running: list[Future[int]] = [pool.submit(requests, client) for client in range(count)]
        try:
            yield
        finally:
            stop.set()
    assert min(future.result() for future in running) > 0


def serving(fleet: Installed) -> list[dict[str, Any]]:
    """Its pods that are ready and stay."""
    pods = (pod for pod in fleet.pods(NAME) if "deletionTimestamp" not in pod["metadata"])
    return [pod for pod in pods if is_ready(pod)]


def victims(fleet: Installed) -> list[str]:
    """Of the decisions to have fewer replicas."""
    decisions = fleet.resource(NAME)["status"].get("scaling", {}).get("decisions", [])
    return [item["victim"] for item in decisions if item["to"] < item["from"]]


def test_a_fleet_grows_under_load_and_shrinks_after_it_without_a_failed_request(models: Installed) -> None:
    engine = {"dtype": "Float32", "maxModelLengthTokens": 512, "maxRunningSequences": SEATS}
    models.apply(tiny_deployment(NAME, engine=engine, autoscaling=SCALING))
    models.wait_ready(NAME)

    with clients(models, CLIENTS):
        eventually(lambda: len(serving(models)), 2, seconds=90)
        models.wait_routed(NAME)
    before = {pod["metadata"]["name"] for pod in serving(models)}
    with clients(models, 1):
        models.wait_for(NAME, "ScalingActive", "True", "FollowsDemand")
        try:
            eventually(lambda: len(models.pods(NAME)), 1, seconds=90)
        except AssertionError as error:
            error.add_note(json.dumps(models.resource(NAME)["status"]))  # has the reason of each decision
            raise

    (left,) = before - set(victims(models)[:1])
    assert [pod["metadata"]["name"] for pod in models.pods(NAME)] == [left]
    assert models.get("deployment", NAME)["spec"]["replicas"] == 1
    assert models.resource(NAME)["spec"]["replicas"] == 1


def test_kubectl_scale_takes_the_worker_whose_cache_is_worth_least(models: Installed) -> None:
    models.apply(tiny_deployment(NAME, replicas=2))
    models.wait_ready(NAME)
    eventually(lambda: len(serving(models)), 2, seconds=60)
    models.wait_routed(NAME)
    prompt = "The same long prefix, which only one worker holds, comes again and again. " * 4
    for number in range(6):
        models.chat(NAME, f"{prompt} Part {number}.", max_tokens=2)
    pods = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in models.pods(NAME)}

    models.kubectl("scale", "modeldeployment", NAME, "--replicas=1")
    eventually(lambda: len(models.pods(NAME)), 1, seconds=60)

    (kept,) = models.pods(NAME)
    cached = models.chat(NAME, f"{prompt} Part 9.", max_tokens=2)["usage"]["prompt_tokens_details"]
    assert cached["cached_tokens"] > 0, json.dumps({"pods": pods, "kept": kept["metadata"]["name"]})
    assert DELETION_COST_ANNOTATION not in kept["metadata"].get("annotations", {})
