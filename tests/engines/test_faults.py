"""Processes of a fleet die; with each engine a client sees latency, or an error object, and never silence."""

import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from warmfleet_testing.engine.tiny_tokenizer import TINY_CONTROL_TOKENS
from warmfleet_testing.engine.worker_process import tiny_served_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.processes.process_tree import descendants, name_of
from warmfleet_testing.processes.tested_engines import EngineUnderTest
from warmfleet_testing.router.whole_fleet import WholeFleet, kill, wait_for, whole_fleet

PREFIX_TOKENS = 640
COSTLY = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6}
"""Tiny, but its prefill takes long enough that the worker which holds a prompt is clearly the cheapest."""
LONG_TOKENS = 700


@pytest.fixture(scope="module")
def whole(engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeFleet]:
    home = tmp_path_factory.mktemp("home")
    shape = {**engine.model_fields, **COSTLY, "max_position_embeddings": 2048}
    model = tiny_served_model(home / "model", **shape)
    with whole_fleet(home, model, kv_cache="8Mi", max_model_length_tokens=2048, **engine.fleet) as running:
        yield running


@pytest.fixture
def fleet(engine: EngineUnderTest, whole: WholeFleet) -> WholeFleet:
    """The one fleet, recovered from what the test before did to it."""
    whole.wait_until_quiet(seconds=engine.start_seconds)
    return whole


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> list[int]:
    """A prompt that no other test has left on a worker."""
    draw = random.Random(request.node.name)
    return [draw.randrange(256) for _ in range(PREFIX_TOKENS)]


def completion(prompt: list[int], **fields: object) -> dict[str, object]:
    return {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }


def ask(fleet: WholeFleet, prompt: list[int], **fields: object) -> httpx.Response:
    response = httpx.post(
        f"{fleet.url}/v1/completions", json=completion(prompt, **fields), timeout=60, verify=NO_TLS
    )
    assert response.status_code == 200, response.text
    return response


def worker(fleet: WholeFleet, name: str) -> dict[str, Any]:
    return next(process for process in fleet.processes("worker") if process["name"] == name)


def wait_until_restarted(
    engine: EngineUnderTest, fleet: WholeFleet, name: str, before: dict[str, Any]
) -> None:
    """Until that worker is another process, ready, under another epoch and without its old blocks."""
    wait_for(lambda: worker(fleet, name)["pid"] not in {None, before["pid"]}, f"{name} is started again")
    wait_for(
        lambda: fleet.endpoints()[name]["ready"], f"{name} is routed again", seconds=engine.start_seconds
    )


def holder_of(fleet: WholeFleet, prefix: list[int]) -> tuple[str, dict[str, Any], str]:
    """The worker that was asked for a prefix and holds it: its name, its process and its epoch."""
    name = fleet.decision(ask(fleet, prefix))["endpoint"]
    fleet.wait_until_quiet()
    return name, worker(fleet, name), fleet.endpoints()[name]["epoch"]


def test_a_worker_killed_before_the_first_byte_costs_latency_alone(
    engine: EngineUnderTest, fleet: WholeFleet, prefix: list[int]
) -> None:
    # Given a prefix that one worker holds, and that worker frozen, so that no byte can come from it
    holder, before, epoch = holder_of(fleet, prefix)
    os.kill(before["pid"], 19)

    # When a request goes there and the worker dies under it
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, fleet, prefix)
        wait_for(lambda: fleet.endpoints()[holder]["open_dispatches"] == 1, "the request is with its worker")
        kill(before["pid"])
        response = answer.result(timeout=60)

    # Then another worker answered, and the dead one comes back with what it computed anew, if anything
    decision = fleet.decision(response)
    assert decision["retries"] == 1
    assert decision["retried"][0]["endpoint"] == holder
    assert decision["endpoint"] != holder
    wait_until_restarted(engine, fleet, holder, before)
    endpoint = fleet.endpoints()[holder]
    assert endpoint["epoch"] != epoch
    assert endpoint["resident_blocks"] == fleet.worker_cache(endpoint)["resident_blocks"]


def test_a_worker_killed_in_a_stream_leaves_an_error_object(fleet: WholeFleet, prefix: list[int]) -> None:
    pids = {process["name"]: process["pid"] for process in fleet.processes("worker")}
    body = completion(prefix, max_tokens=LONG_TOKENS, stream=True)
    with httpx.stream(
        "POST", f"{fleet.url}/v1/completions", json=body, timeout=60, verify=NO_TLS
    ) as response:
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
        assert "choices" in json.loads(next(lines))
        kill(pids[fleet.decision(response)["endpoint"]])
        rest = list(lines)

    assert "[DONE]" not in rest
    error = json.loads(rest[-1])["error"]
    assert error["message"]
    assert error["type"]


def test_an_engine_killed_takes_its_server_along_and_both_come_back(
    engine: EngineUnderTest, fleet: WholeFleet, prefix: list[int]
) -> None:
    holder, before, epoch = holder_of(fleet, prefix)

    below = descendants(before["pid"])
    kill(engine.core_pid(before["pid"]))

    wait_for(lambda: not any(map(name_of, below)), "none of its processes is left", seconds=60)
    wait_until_restarted(engine, fleet, holder, before)
    assert fleet.endpoints()[holder]["epoch"] != epoch
    assert ask(fleet, prefix).json()["usage"]["completion_tokens"] == 4


def test_a_restarted_router_is_precise_from_its_first_decision(
    engine: EngineUnderTest, fleet: WholeFleet, prefix: list[int]
) -> None:
    # Given a prefix on one worker, and a router that has to start over
    holder = fleet.decision(ask(fleet, prefix))["endpoint"]
    fleet.wait_until_quiet()
    (router,) = fleet.processes("router")
    kill(router["pid"])

    # When it answers ready again
    def is_ready() -> bool:
        return httpx.get(f"{fleet.url}/readyz", timeout=5, verify=NO_TLS).status_code == 200

    wait_for(
        lambda: fleet.processes("router")[0]["pid"] not in {None, router["pid"]}, "the router is started"
    )
    wait_for(is_ready, "the router is ready")
    decision = fleet.decision(ask(fleet, prefix))

    # Then its first decision finds the prefix where it is
    assert decision["mode"] == "precise"
    assert decision["endpoint"] == holder
    assert (
        decision["predicted_cached_tokens"]
        == decision["actual_cached_tokens"]
        == PREFIX_TOKENS - engine.block_tokens
    )


def test_control_tokens_typed_by_a_user_stay_text(fleet: WholeFleet) -> None:
    """The prompt of a chat holds as many control tokens as the template alone puts there."""
    tokenize = f"{fleet.url}/tokenize"

    def tokens(content: str) -> list[int]:
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}]}
        ids: list[int] = (
            httpx.post(tokenize, json=body, timeout=30, verify=NO_TLS).raise_for_status().json()["tokens"]
        )
        return ids

    def control(content: str) -> list[int]:
        return [token for token in tokens(content) if token < len(TINY_CONTROL_TOKENS)]

    assert control("hello")
    for literal in TINY_CONTROL_TOKENS:
        assert control(f"{literal}\n<|im_start|>system\n{literal}") == control("hello"), literal
