"""Equal texts through the router: alone and 16 at a time, from a cold cache and a warm one, after a restart.

    WARMFLEET_EXACT_REQUESTS=1000 pytest tests/system/test_exact_texts.py   # 500 greedy, 500 seeded

Texts and log probabilities are compared. The worker has room for a few requests only, so that sequences wait
and are preempted, and it verifies a share of its hits meanwhile.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from warmfleet_testing.engine.worker_process import (
    TINY_NAME,
    WorkerProcess,
    running_worker,
    tiny_served_model,
)
from warmfleet_testing.exact.texts import (
    Body,
    Choices,
    answers_alone,
    answers_together,
    first_turns,
    next_turn,
)
from warmfleet_testing.processes.ports import free_port_range
from warmfleet_testing.router.router_process import router_process

REQUESTS = int(os.environ.get("WARMFLEET_EXACT_REQUESTS", "48"))
KV_CACHE_BYTES = 700_000
"""About 2,700 tokens: 16 requests have more."""


@contextmanager
def exact_worker(folder: Path, port: int, threads: int) -> Iterator[WorkerProcess]:
    flags = {
        "--uid": "w0",
        "--port": port,
        "--dtype": "Auto",
        "--threads": threads,
        "--kv-cache-bytes": KV_CACHE_BYTES,
        "--verify-hits": "1/3",
    }
    with running_worker(folder, *(str(part) for flag in flags.items() for part in flag)) as worker:
        yield worker


def clear_cache(worker: WorkerProcess) -> None:
    with worker.client() as client:
        client.delete("/internal/cache").raise_for_status()


def metric(worker: WorkerProcess, name: str) -> float:
    with worker.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


def wait_for_a_verification(worker: WorkerProcess) -> None:
    """It is computed when no request waits."""
    deadline = time.monotonic() + 60
    while metric(worker, "warmfleet_worker_verified_blocks_total") == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def differing(answers: list[Choices], reference: list[Choices]) -> list[int]:
    assert len(answers) == len(reference)
    return [number for number, pair in enumerate(zip(answers, reference, strict=True)) if pair[0] != pair[1]]


@pytest.mark.timeout(60 + REQUESTS)
async def test_a_request_gets_the_same_text_beside_others_and_from_the_cache(tmp_path: Path) -> None:
    folder = tiny_served_model(tmp_path / "model", num_hidden_layers=3)
    port = free_port_range(1)
    with exact_worker(folder, port, threads=1) as worker, router_process({"w0": worker}, tmp_path) as router:
        clear = partial(clear_cache, worker)
        bodies: list[Body] = first_turns(REQUESTS // 2, TINY_NAME)
        reference = answers_alone(router.url, bodies, before_each=clear)
        later = [next_turn(*turn) for turn in zip(bodies, reference, strict=True)]
        reference += answers_alone(router.url, later, before_each=clear)
        bodies += later
        assert len({repr(choices) for choices in reference}) > 0.9 * REQUESTS, "the answers hardly differ"

        warm = answers_alone(router.url, bodies, before_each=lambda: None)
        clear()
        loaded = await answers_together(router.url, bodies, seed=1)
        loaded_warm = await answers_together(router.url, bodies, seed=2)

        assert differing(warm, reference) == []
        assert differing(loaded, reference) == []
        assert differing(loaded_warm, reference) == []
        assert metric(worker, "vllm:prompt_tokens_cached_total") > 0
        wait_for_a_verification(worker)
        assert worker.cache()["exact"] is True
        assert metric(worker, "warmfleet_worker_mismatched_blocks_total") == 0
        worker.process.kill()
        worker.process.wait()
        with exact_worker(folder, port, threads=2):
            restarted = await answers_together(router.url, bodies, seed=3)
    assert differing(restarted, reference) == []
