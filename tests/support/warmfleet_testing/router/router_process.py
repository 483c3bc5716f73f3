"""A real router as a subprocess in front of real workers, its log readable."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import httpx

from warmfleet_testing.engine.worker_process import WorkerProcess
from warmfleet_testing.processes.error_log import error_log, lines_so_far
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.processes.process_limits import Limits, under

START_SECONDS: Final = 120.0


@dataclass
class RouterProcess:
    """A running router; `url` has no trailing slash."""

    process: subprocess.Popen[str]
    url: str
    errors: IO[str]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, verify=NO_TLS)

    def log_text(self) -> str:
        """All that the router wrote to stderr so far."""
        self.errors.seek(0)
        return self.errors.read()

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in lines_so_far(self.errors) if line.startswith("{")]


@contextmanager
def router_process(
    workers: Mapping[str, WorkerProcess],
    home: Path,
    *flags: str,
    environment: Mapping[str, str] = {},
    limits: Limits | None = None,
) -> Iterator[RouterProcess]:
    """A router on a free port that knows `workers` by their uids, ready; killed at the end."""
    entries = [{"uid": uid, "url": worker.url, "token": worker.token} for uid, worker in workers.items()]
    endpoints = home / "endpoints.json"
    endpoints.write_text(json.dumps(entries))
    command = [sys.executable, "-m", "warmfleet_router", "--port", "0", "--endpoints-file", str(endpoints)]
    variables = {"WARMFLEET_HOME": str(home), "WARMFLEET_SALT_KEY": "5a" * 32, **environment}
    with started_router(under(limits or {}, [*command, *flags]), variables) as router:
        yield router


@contextmanager
def started_router(command: Sequence[str], variables: Mapping[str, str]) -> Iterator[RouterProcess]:
    """Run a command that becomes a router, until it is ready; killed at the end.

    `variables` add to this process's environment.
    """
    with error_log() as (written, errors):
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
            env={**os.environ, **variables},
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, f"the router printed nothing; exit code {process.wait()}: {errors.read()}"
            router = RouterProcess(process, f"http://127.0.0.1:{json.loads(line)['port']}", errors)
            _wait_until_ready(router)
            yield router
        finally:
            process.kill()
            process.communicate()


def _wait_until_ready(router: RouterProcess) -> None:
    deadline = time.monotonic() + START_SECONDS
    while httpx.get(f"{router.url}/readyz", timeout=START_SECONDS, verify=NO_TLS).status_code != 200:
        assert time.monotonic() < deadline, router.log_text()
        time.sleep(0.05)
