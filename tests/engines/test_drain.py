"""SIGTERM: live streams end whole, new requests are refused, and the deadline ends what takes too long."""

import json
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import httpx
import pytest

from warmfleet_testing.engine.worker_process import (
    TINY_NAME,
    WorkerProcess,
    running_worker,
    tiny_served_model,
)
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.processes.tested_engines import EngineUnderTest

LONG: Final = {
    "model": TINY_NAME,
    "prompt": "hello",
    "max_tokens": 900,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}
EXIT_SECONDS: Final = 60
"""Most that a worker takes to end; vLLM's own processes end before it."""
Start = Callable[..., AbstractContextManager[WorkerProcess]]


@pytest.fixture(scope="module")
def start(engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Start:
    model: Path = tiny_served_model(tmp_path_factory.mktemp("model"), **engine.model_fields)
    flags = ("--kv-cache-bytes", "4000000", *engine.flags)
    return lambda *more: running_worker(model, *flags, *more, start_seconds=engine.start_seconds)


def test_sigterm_lets_live_streams_finish_and_refuses_new_requests(start: Start) -> None:
    with start() as worker, worker.client() as client:
        with client.stream("POST", "/v1/completions", json=LONG) as response:
            lines = response.iter_lines()
            next(lines)
            engine_pid = worker.engine_pid
            os.kill(engine_pid, signal.SIGSTOP)  # the stream is not over before the questions are

            worker.process.send_signal(signal.SIGTERM)
            worker.wait_for_log("draining")
            probe = httpx.get(f"{worker.url}/readyz", verify=NO_TLS)
            late = httpx.post(f"{worker.url}/v1/completions", json=LONG, verify=NO_TLS)
            alive = httpx.get(f"{worker.url}/livez", verify=NO_TLS)
            os.kill(engine_pid, signal.SIGCONT)
            rest = [line for line in lines if line]

        assert (probe.status_code, alive.status_code) == (503, 200)
        assert late.status_code == 503
        assert "draining" in late.json()["error"]["message"]
        assert rest[-1] == "data: [DONE]"
        assert worker.process.wait(EXIT_SECONDS) == 0


def test_a_drain_ends_at_its_deadline_with_an_error_and_not_with_silence(start: Start) -> None:
    with start("--drain-seconds", "0.1") as worker:
        body = {**LONG, "prompt": [secrets.token_hex(4) for _ in range(60)]}
        with worker.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            worker.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]

        assert "error" in json.loads(rest[-1].removeprefix("data: "))
        assert worker.process.wait(EXIT_SECONDS) == 0
