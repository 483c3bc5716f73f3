"""A whole fleet as its user starts it: `warmfleet up --detach` on a manifest, and `warmfleet down`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx

from warmfleet_contracts.cache.kv_events import COALESCE_SECONDS
from warmfleet_contracts.keys import encode_key_file
from warmfleet_testing.processes.compiled_step import keep_compiled_step
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.processes.ports import free_port_range
from warmfleet_testing.router.planted_keys import PlantedKeys

START_SECONDS: Final = 120

Found = TypeVar("Found")


@dataclass(frozen=True)
class WholeFleet:
    """A running fleet; `url` is the router's, without a trailing slash."""

    name: str
    home: Path
    url: str
    admin_key: str = ""
    """A key with admin scope, where the router asks for keys."""

    def processes(self, role: str) -> list[dict[str, Any]]:
        """What `warmfleet status` knows of the workers or routers."""
        text = run_warmfleet(self.home, "status", "--name", self.name, "--output", "json")
        (record,) = json.loads(text)["fleets"]
        return [process for process in record["processes"] if process["role"] == role]

    def get(self, path: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.admin_key}"} if self.admin_key else {}
        answer: dict[str, Any] = (
            httpx.get(f"{self.url}{path}", headers=headers, timeout=30, verify=NO_TLS)
            .raise_for_status()
            .json()
        )
        return answer

    def decision(self, response: httpx.Response) -> dict[str, Any]:
        """What the router decided about the request that got this response."""
        return self.get(f"/debug/decisions/{response.headers['x-warmfleet-decision']}")

    def endpoints(self) -> dict[str, dict[str, Any]]:
        """The router's view of each worker, by name."""
        return {endpoint["name"]: endpoint for endpoint in self.get("/internal/fleet")["endpoints"]}

    def wait_until_quiet(self, *, seconds: float = START_SECONDS) -> None:
        """Until no request runs and the router holds of each worker what the worker itself reports."""

        def seen() -> dict[str, int] | None:
            endpoints = self.endpoints().values()
            is_quiet = all(
                endpoint["ready"]
                and endpoint["precise"]
                and endpoint["open_dispatches"] == 0
                and endpoint["load"].get("running_sequences", 0) == 0
                and self._is_mirrored(endpoint)
                for endpoint in endpoints
            )
            return {one["name"]: one["resident_blocks"] for one in endpoints} if is_quiet else None

        def is_quiet() -> bool:
            before = seen()
            if before is None:
                return False
            # A worker's server learns of its engine's blocks, and a router of them, up to 20 ms late.
            time.sleep(2 * COALESCE_SECONDS)
            return seen() == before

        # One of its processes may be starting.
        wait_for(is_quiet, "the fleet is quiet", seconds=seconds)

    def _is_mirrored(self, endpoint: dict[str, Any]) -> bool:
        """Whether the router's view is of the engine that runs now, and of all its blocks."""
        cache = self.worker_cache(endpoint)
        return all(endpoint[field] == cache[field] for field in ("epoch", "resident_blocks"))

    def worker_cache(self, endpoint: dict[str, Any]) -> dict[str, Any]:
        """`GET /internal/cache` of one worker."""
        headers = {"authorization": f"Bearer {self._token(endpoint['name'])}"}
        response = httpx.get(f"{endpoint['url']}/internal/cache", headers=headers, timeout=30, verify=NO_TLS)
        cache: dict[str, Any] = response.raise_for_status().json()
        return cache

    def _token(self, name: str) -> str:
        entries = json.loads((self.home / "run" / self.name / "endpoints.json").read_text())["endpoints"]
        tokens: dict[str, str] = {entry["name"]: entry["token"] for entry in entries}
        return tokens[name]


def run_warmfleet(
    home: Path, *arguments: str, exit_code: int = 0, api_key: str = "", seconds: float = START_SECONDS + 60
) -> str:
    """Stdout of `warmfleet <arguments>`."""
    finished = subprocess.run(
        [sys.executable, "-m", "warmfleet_cli", *arguments],
        env={**os.environ, "WARMFLEET_HOME": str(home), "WARMFLEET_API_KEY": api_key},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert finished.returncode == exit_code, f"{arguments}: {finished.stdout}\n{finished.stderr}"
    return finished.stdout


@contextmanager
def whole_fleet(
    home: Path,
    model_path: Path,
    *,
    served_name: str = "tiny",
    replicas: int = 2,
    kv_cache: str = "4Mi",
    max_model_length_tokens: int = 512,
    sharing: str = "Tenant",
    keys: PlantedKeys | None = None,
    seats: int = 64,
    autoscaling: dict[str, Any] | None = None,
    engine: Mapping[str, object] = {},
    block_size_tokens: int = 16,
    start_seconds: float = START_SECONDS,
) -> Iterator[WholeFleet]:
    """A detached fleet on free ports, gone afterwards. With `keys` its router asks for them.

    With `autoscaling` it scales itself, and begins with `replicas`.
    """
    name = "whole"
    manifest: dict[str, Any] = {
        "apiVersion": "warmfleet.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"servedNames": [served_name], "source": {"localPath": {"path": str(model_path)}}},
            "engine": {
                "dtype": "Float32",
                "maxModelLengthTokens": max_model_length_tokens,
                "maxRunningSequences": seats,
                **engine,
            },
            "kvCache": {"size": kv_cache, "sharing": sharing, "blockSizeTokens": block_size_tokens},
            "replicas": replicas,
            "rollout": {"drainTimeoutSeconds": 5},
        },
    }
    most, scales = replicas, ()
    if autoscaling is not None:
        manifest["spec"]["autoscaling"] = autoscaling
        most, scales = autoscaling["maxReplicas"], ("--autoscale",)
    path = home / f"{name}.yaml"
    path.write_text(json.dumps(manifest))
    keep_compiled_step(home)
    router_port = free_port_range(1 + most)
    ports = ("--port", str(router_port), "--worker-port", str(router_port + 1))
    admin_key, guard = "", ()
    if keys is not None:
        admin_key = keys.add("ops", scopes=["admin"]).text
        (home / "keys.json").write_bytes(encode_key_file(keys.file))
        guard = ("--keys-file", str(home / "keys.json"))
    more = (*ports, *guard, *scales)
    run_warmfleet(
        home, "up", "-f", str(path), *more, "--detach", "--output", "json", seconds=start_seconds + 60
    )
    try:
        yield WholeFleet(name, home, f"http://127.0.0.1:{router_port}", admin_key)
    finally:
        run_warmfleet(home, "down", "--name", name)


def wait_for(found: Callable[[], Found], what: str, *, seconds: float = 30) -> Found:
    """The first truthy value of `found`; a process that is down or starting counts as "not yet"."""
    deadline = time.monotonic() + seconds
    while True:
        value, why = _try(found)
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}") from why
        time.sleep(0.02)


def _try(found: Callable[[], Found]) -> tuple[Found | None, httpx.HTTPError | None]:
    """The value of `found`, or why no process answered."""
    try:
        return found(), None
    except httpx.TransportError as error:
        return None, error
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            raise
        return None, error


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
