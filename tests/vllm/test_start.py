"""An engine core of a real vLLM that ends, or hangs, while it starts: its worker ends with the reason."""

import os
import signal
from pathlib import Path

import pytest

from warmfleet_testing.engine.worker_process import running_worker, tiny_served_model
from warmfleet_testing.processes.process_tree import descendants, name_of
from warmfleet_testing.processes.tested_engines import VLLM
from warmfleet_testing.router.whole_fleet import wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

STARTUP_SECONDS = 60


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (
            signal.SIGKILL,
            "one of vLLM's processes was killed at the start, most likely for memory: the model's",
        ),
        (signal.SIGSTOP, "vLLM did not start within 57 s: its processes hang or load for longer"),
    ],
    ids=["killed", "hangs"],
)
def test_a_core_that_does_not_come_up_ends_the_worker_with_the_reason(
    tmp_path: Path, sent: signal.Signals, reason: str
) -> None:
    model = tiny_served_model(tmp_path / "model", **VLLM.model_fields)
    # A start that is killed needs no bound of its own.
    seconds = STARTUP_SECONDS if sent is signal.SIGSTOP else VLLM.start_seconds
    flags = ("--kv-cache-bytes", "4000000", "--startup-seconds", f"{seconds:.0f}", *VLLM.flags)
    with running_worker(model, *flags, wait=False) as worker:
        cores: list[int] = []

        def has_core() -> bool:
            below = descendants(worker.process.pid)
            cores[:] = [pid for pid in below if name_of(pid).startswith("VLLM::EngineCor")]
            return bool(cores)

        wait_for(has_core, "the engine core starts", seconds=VLLM.start_seconds)
        below = descendants(worker.process.pid)

        os.kill(cores[0], sent)

        assert worker.process.wait(4 * STARTUP_SECONDS) == 1
        reasons = [line.get("reason", "") for line in worker.log_lines()]
        assert any(reason in one for one in reasons), reasons
        wait_for(lambda: not any(map(name_of, below)), "none of its processes is left", seconds=60)
