"""A real worker as a subprocess on a seeded tiny model: server, engine process, loopback HTTP."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import httpx
import torch

from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_testing.engine.tiny_tokenizer import CHATML_TEMPLATE, TINY_CONTROL_TOKENS, tiny_tokenizer
from warmfleet_testing.processes.error_log import error_log, lines_so_far
from warmfleet_testing.processes.plain_http import NO_TLS

START_SECONDS: Final = 120.0
TINY_NAME: Final = "tiny"


def tiny_served_model(folder: Path, family: str = "llama", **overrides: Any) -> Path:
    """A model folder that a worker can serve: tiny weights, byte-level tokenizer, ChatML template."""
    tokenizer = tiny_tokenizer()
    end_token_id = TINY_CONTROL_TOKENS.index("<|im_end|>")
    torch.set_num_threads(1)
    tiny_model_folder(
        family,
        folder,
        **{"vocab_size": len(tokenizer["model"]["vocab"]), "eos_token_id": end_token_id, **overrides},
    )
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(CHATML_TEMPLATE)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"})
    )
    return folder


@dataclass
class WorkerProcess:
    """A running worker; `url` has no trailing slash."""

    process: subprocess.Popen[str]
    url: str
    port: int
    token: str
    errors: IO[str]

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def engine_pid(self) -> int:
        """Pid of the engine process: the worker's only child."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=30, verify=NO_TLS)

    def cache(self) -> dict[str, Any]:
        """`GET /internal/cache`."""
        with self.client() as client:
            answer: dict[str, Any] = client.get("/internal/cache").raise_for_status().json()
        return answer

    def wait_until_idle(self, timeout_seconds: float = 30) -> dict[str, Any]:
        """The cache description once no live sequence holds a block."""
        deadline = time.monotonic() + timeout_seconds
        while (cache := self.cache())["pinned_blocks"]:
            assert time.monotonic() < deadline, cache
            time.sleep(0.02)
        return cache

    def log_lines(self) -> list[dict[str, Any]]:
        """What the worker logged so far; lines of other programs' making are left out."""
        return [json.loads(line) for line in lines_so_far(self.errors) if line.startswith("{")]

    def wait_for_log(self, event: str, timeout_seconds: float = 30, **fields: object) -> dict[str, Any]:
        """The first log line with this event and these fields."""
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            for line in self.log_lines():
                if line["event"] == event and fields.items() <= line.items():
                    return line
            time.sleep(0.02)
        raise AssertionError(f"no log line {event!r} {fields}: {self.log_lines()}")

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the worker ended with {self.process.returncode}: {self.log_lines()}")
            # It listens before it answers: what is between takes its time on a busy machine.
            if httpx.get(f"{self.url}/readyz", timeout=START_SECONDS, verify=NO_TLS).status_code == 200:
                return
            time.sleep(0.05)
        raise AssertionError(f"the worker is not ready after {seconds} s: {self.log_lines()}")


@contextmanager
def running_worker(
    model_path: Path,
    *flags: str,
    module: str = "warmfleet_worker",
    token: str = "",
    wait: bool = True,
    start_seconds: float = START_SECONDS,
    environment: Mapping[str, str] = {},
) -> Iterator[WorkerProcess]:
    """A worker on a free port, ready unless `wait` is false; killed at the end if it still runs."""
    defaults = (
        "--served-name",
        TINY_NAME,
        "--port",
        "0",
        "--threads",
        "1",
        "--dtype",
        "Float32",
        "--prewarm-seconds",
        "0",
    )
    command = [sys.executable, "-m", module, "--model", str(model_path), *defaults, *flags]
    with error_log() as (written, errors):
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
            env={**os.environ, "WARMFLEET_WORKER_TOKEN": token, **environment},
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"the worker wrote nothing; exit code {process.wait()}"
            port = json.loads(line)["port"]
            worker = WorkerProcess(process, f"http://127.0.0.1:{port}", port, token, errors)
            if wait:
                worker.wait_until_ready(start_seconds)
            yield worker
        finally:
            process.kill()
            process.communicate()
