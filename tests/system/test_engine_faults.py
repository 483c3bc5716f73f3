"""A step that fails in a real engine ends the request that fails, and no other.

Through HTTP, on a real worker whose runner fails on demand (`warmfleet_testing.engine.faulty_runner`).
"""

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from warmfleet_testing.engine.faulty_runner import Fault, fault_seed
from warmfleet_testing.engine.worker_process import WorkerProcess, running_worker, tiny_served_model
from warmfleet_testing.processes.plain_http import NO_TLS

OTHERS = 6
ANSWER_TOKENS = 200
PROMPT_TOKENS = 20
FAILS_AT = 5
"""Token 25 of the sequence, in the middle of its second block of 16."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    folder = tiny_served_model(tmp_path_factory.mktemp("model"))
    with running_worker(
        folder, "--kv-cache-bytes", "4194304", module="warmfleet_testing.engine.faulty_worker"
    ) as one:
        yield one


def prompt_of(number: int) -> list[int]:
    draw = random.Random(number)
    return [draw.randrange(20, 250) for _ in range(PROMPT_TOKENS)]


def body_of(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": prompt_of(number),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0.8 if number % 2 else 0.0,
        "seed": number,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }


def events_of(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def answer_of(
    worker: WorkerProcess, number: int, begun: threading.Barrier | None = None
) -> tuple[str, list[int]]:
    """Text and token ids of one stream. With `begun`, it waits there after its first event."""
    text, token_ids = "", []
    with (
        worker.client() as client,
        client.stream("POST", "/v1/completions", json=body_of(number, stream=True)) as response,
    ):
        assert response.status_code == 200
        for event in events_of(response.iter_lines()):
            assert "error" not in event
            text += event["choices"][0]["text"]
            token_ids += event["choices"][0].get("token_ids") or []
            if begun is not None:
                begun.wait(20)
                begun = None
    return text, token_ids


def metric(worker: WorkerProcess, name: str) -> float:
    text = httpx.get(f"{worker.url}/metrics", headers=worker.headers, verify=NO_TLS).text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


def faults_of(worker: WorkerProcess, fault: Fault) -> list[dict[str, Any]]:
    """Each time that the runner failed in this way, with the chunks of the step."""
    return [line for line in worker.log_lines() if line["event"] == "fault" and line["kind"] == fault.name]


def together(
    worker: WorkerProcess, failing: dict[str, Any]
) -> tuple[httpx.Response, list[tuple[str, list[int]]]]:
    """Answers of the failing request and of the others, sent while all of those were being streamed."""
    begun = threading.Barrier(OTHERS + 1)
    with ThreadPoolExecutor(OTHERS) as threads, worker.client() as client:
        others = [threads.submit(answer_of, worker, number, begun) for number in range(OTHERS)]
        begun.wait(20)
        response = client.post("/v1/completions", json=failing)
        return response, [other.result(30) for other in others]


@pytest.fixture(scope="module")
def undisturbed(worker: WorkerProcess) -> list[tuple[str, list[int]]]:
    """Each answer as it is alone."""
    answers = [answer_of(worker, number) for number in range(OTHERS)]
    assert all(len(token_ids) == ANSWER_TOKENS for _, token_ids in answers)
    return answers


@pytest.mark.parametrize(
    "fault",
    [Fault.RAISES, Fault.NOT_FINITE, Fault.OUT_OF_MEMORY, Fault.SHORT_ANSWER],
    ids=lambda one: one.name,
)
@pytest.mark.parametrize("streams", [False, True], ids=["plain", "stream"])
def test_the_failing_request_gets_an_error_and_the_others_their_answers(
    worker: WorkerProcess, undisturbed: list[tuple[str, list[int]]], fault: Fault, streams: bool
) -> None:
    engine_pid = worker.engine_pid
    worker.wait_until_idle()
    failed = metric(worker, "warmfleet_worker_failed_sequences_total")
    faults = len(faults_of(worker, fault))

    response, answers = together(worker, body_of(99, seed=fault_seed(fault, FAILS_AT), stream=streams))

    if streams:
        assert response.status_code == 200
        events = list(events_of(iter(response.text.splitlines())))
        error = events[-1]["error"]
        token_ids = [one for event in events[:-1] for one in event["choices"][0].get("token_ids") or []]
        assert len(token_ids) <= FAILS_AT
    else:
        assert response.status_code == 500
        error = response.json()["error"]
    assert error["code"] == "engine_error"
    assert "kernel" not in error["message"], "no inner detail"
    assert answers == undisturbed
    assert max(line["chunks"] for line in faults_of(worker, fault)[faults:]) > 1, "it failed among others"
    assert worker.engine_pid == engine_pid
    assert worker.wait_until_idle()["pinned_blocks"] == 0
    assert metric(worker, "warmfleet_worker_failed_sequences_total") == failed + 1


def test_what_a_failed_request_left_behind_serves_the_next_one(
    worker: WorkerProcess, undisturbed: list[tuple[str, list[int]]]
) -> None:
    with worker.client() as client:
        client.delete("/internal/cache")
        failed = client.post("/v1/completions", json=body_of(0, seed=fault_seed(Fault.NOT_FINITE, FAILS_AT)))
        cached_tokens = client.post("/v1/completions", json=body_of(0)).headers["x-warmfleet-cached-tokens"]

    assert failed.status_code == 500
    assert int(cached_tokens) == 16
    assert answer_of(worker, 0) == undisturbed[0]


def test_a_step_that_is_too_large_for_the_memory_costs_no_request_a_token(
    worker: WorkerProcess, undisturbed: list[tuple[str, list[int]]]
) -> None:
    engine_pid = worker.engine_pid
    seed = fault_seed(Fault.OUT_OF_MEMORY_TOGETHER, FAILS_AT)
    with worker.client() as client:
        alone = client.post("/v1/completions", json=body_of(99, seed=seed)).json()
    failed_executions = metric(worker, "warmfleet_worker_failed_step_executions_total")
    failed_sequences = metric(worker, "warmfleet_worker_failed_sequences_total")

    response, answers = together(worker, body_of(99, seed=seed))

    assert response.status_code == 200
    assert response.json()["choices"] == alone["choices"]
    assert answers == undisturbed
    assert metric(worker, "warmfleet_worker_failed_step_executions_total") > failed_executions
    assert metric(worker, "warmfleet_worker_failed_sequences_total") == failed_sequences
    assert worker.engine_pid == engine_pid
    assert worker.wait_until_idle()["pinned_blocks"] == 0
