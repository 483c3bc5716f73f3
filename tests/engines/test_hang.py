"""An engine that hangs, by a real SIGSTOP: its worker is taken out, and its streams end with an error."""

import json
import os
import signal
from pathlib import Path
from typing import Final

import httpx

from warmfleet_testing.engine.worker_process import TINY_NAME, running_worker, tiny_served_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.processes.process_tree import descendants, name_of
from warmfleet_testing.processes.tested_engines import EngineUnderTest
from warmfleet_testing.router.whole_fleet import wait_for

STALL_SECONDS: Final = {"Warmfleet": 1.0, "VLLM": 20.0}
"""Longer than any step takes on a busy machine, vLLM's of a whole prompt among them."""


def test_an_engine_that_hangs_is_not_ready_then_killed_and_leaves_no_process(
    engine: EngineUnderTest, tmp_path: Path
) -> None:
    model = tiny_served_model(tmp_path / "model", **engine.model_fields)
    seconds = STALL_SECONDS[engine.type]
    flags = ("--kv-cache-bytes", "4000000", "--stall-seconds", str(seconds), *engine.flags)
    body = {"model": TINY_NAME, "prompt": "hello", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with (
        running_worker(model, *flags, start_seconds=engine.start_seconds) as worker,
        worker.client() as client,
        client.stream("POST", "/v1/completions", json=body, timeout=10 * seconds) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        below = descendants(worker.process.pid)

        os.kill(engine.core_pid(worker.process.pid), signal.SIGSTOP)

        def is_out() -> bool:
            return [probe(worker.url, path) for path in ("readyz", "livez")] == [503, 503]

        wait_for(is_out, "it is neither ready nor alive", seconds=5 * seconds)
        rest = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert "error" in json.loads(rest[-1])
        assert worker.process.wait(10 * seconds) == 1
        wait_for(lambda: not any(map(name_of, below)), "none of its processes is left", seconds=60)
        reasons = [line.get("reason", "") for line in worker.log_lines()]
        assert any(f"no step for {2 * seconds:g} seconds" in reason for reason in reasons), reasons


def probe(url: str, path: str) -> int:
    return httpx.get(f"{url}/{path}", timeout=30, verify=NO_TLS).status_code
