"""`vllm:request_success` counts every sequence that ends, by reason: also errors and aborts."""

import time

import pytest

from warmfleet_testing.engine.faulty_runner import Fault, fault_seed
from warmfleet_testing.engine.worker_process import TINY_NAME, running_worker

BODY = {"model": TINY_NAME, "prompt": [20] * 8, "max_tokens": 5, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def worker(tiny_served_path):
    flags = ("--kv-cache-bytes", "4194304")
    with running_worker(tiny_served_path, *flags, module="warmfleet_testing.engine.faulty_worker") as one:
        yield one


def outcomes(client):
    """Finished sequences by reason."""
    return {
        line.partition('finished_reason="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("vllm:request_success_total{")
    }


def wait_for_outcome(client, reason, count):
    deadline = time.monotonic() + 10
    while outcomes(client).get(reason, 0) < count:
        assert time.monotonic() < deadline, outcomes(client)
        time.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
def test_a_sequence_that_fails_is_counted_as_an_error(worker, stream):
    with worker.client() as client:
        before = outcomes(client).get("error", 0)

        client.post("/v1/completions", json={**BODY, "seed": fault_seed(Fault.RAISES, 2), "stream": stream})

        wait_for_outcome(client, "error", before + 1)
        assert outcomes(client)["error"] == before + 1


def test_each_sequence_of_a_client_that_leaves_is_counted_as_aborted(worker):
    with worker.client() as client:
        body = {**BODY, "max_tokens": 900, "stream": True, "n": 2}
        with client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())

        wait_for_outcome(client, "abort", 2)
        assert outcomes(client)["abort"] == 2


def test_a_sequence_that_ends_by_itself_is_counted_once(worker):
    with worker.client() as client:
        before = outcomes(client)

        client.post("/v1/completions", json=BODY).raise_for_status()

        wait_for_outcome(client, "length", before.get("length", 0) + 1)
        assert sum(outcomes(client).values()) == sum(before.values()) + 1
