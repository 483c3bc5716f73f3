"""The operator as users run it: a process of its own, against a real API server."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from warmfleet_testing.cluster.control_plane import ControlPlane
from warmfleet_testing.processes.error_log import whole_lines
from warmfleet_testing.processes.plain_http import NO_TLS

START_SECONDS: Final = 30
USER_AGENT: Final = "warmfleet-operator"


class OperatorProcess:
    """A running operator."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process = process
        self.log_path = log
        assert process.stdout is not None
        self.health_url, self.metrics_url = (_url(process.stdout.readline()) for _ in range(2))

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> list[dict[str, Any]]:
        """Its log lines so far."""
        return [json.loads(line) for line in whole_lines(self.log_path.read_text()) if line.startswith("{")]

    def get(self, path: str) -> httpx.Response:
        """One of the probes."""
        return httpx.get(self.health_url + path, timeout=5, trust_env=False, verify=NO_TLS)

    def metric(self, name: str, **labels: str) -> float:
        """The value of a sample; 0 if there is none."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        for line in httpx.get(
            f"{self.metrics_url}/metrics", timeout=5, trust_env=False, verify=NO_TLS
        ).text.splitlines():
            if line.split("{")[0].split(" ")[0] == name and all(label in line for label in wanted):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def wait_until_ready(self) -> None:
        eventually(lambda: self.get("/readyz").status_code == 200, START_SECONDS)

    def wait_until_leading(self) -> None:
        eventually(lambda: self.get("/readyz").json()["status"] == "leading", START_SECONDS)

    def stop(self) -> int:
        """End it politely; returns the exit code."""
        self.process.terminate()
        return self.process.wait(START_SECONDS)


def eventually(holds: Callable[[], object], seconds: float = 60.0, pause_seconds: float = 0.1) -> Any:
    """The first true answer of `holds`; fails after `seconds`, with its last answer or error."""
    deadline = time.monotonic() + seconds
    while True:
        problem: object
        try:
            answer = problem = holds()
            if answer:
                return answer
        except (AssertionError, LookupError, httpx.HTTPError) as error:
            problem = error
        assert time.monotonic() < deadline, f"not within {seconds} s: {problem!r}"
        time.sleep(pause_seconds)


@contextmanager
def running_operator(
    plane: ControlPlane, namespace: str, *flags: str, name: str = "operator-0"
) -> Iterator[OperatorProcess]:
    """An operator for one namespace, which is its release's, too; killed at the end if it still runs."""
    with tempfile.TemporaryDirectory(prefix="wf-operator-") as folder:
        log = Path(folder) / "operator.log"
        with log.open("w") as stderr:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "warmfleet_operator"),
                    *("--kubeconfig", str(plane.kubeconfig)),
                    *("--release-namespace", namespace, "--namespace", namespace),
                    *("--worker-cpu-image", "registry.invalid/warmfleet-worker:test"),
                    *("--worker-cuda-image", "registry.invalid/warmfleet-worker-cuda:test"),
                    *("--health-port", "0", "--metrics-port", "0", "--host", "127.0.0.1"),
                    *flags,
                ],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**plane.environment, "WARMFLEET_POD_NAME": name},
            )
            try:
                yield OperatorProcess(process, log)
            finally:
                process.kill()
                process.wait()
                assert process.stdout is not None
                process.stdout.close()


def _url(line: str) -> str:
    announced = json.loads(line)
    return f"http://{announced['host']}:{announced['port']}"
