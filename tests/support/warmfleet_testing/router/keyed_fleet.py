"""A router that requires keys before a tiny worker, both as processes, and the log of its requests."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from warmfleet_contracts.keys import encode_key_file
from warmfleet_testing.engine.worker_process import WorkerProcess, running_worker, tiny_served_model
from warmfleet_testing.processes.error_log import lines_so_far, whole_lines
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.processes.tested_engines import OWN, EngineUnderTest
from warmfleet_testing.router.planted_keys import PlantedKeys
from warmfleet_testing.router.whole_fleet import wait_for

WORKER_UID: Final = "keyed"
WORKER_TOKEN: Final = "token-of-the-keyed-worker"


@dataclass(frozen=True)
class KeyedFleet:
    """`url` is the router's, without a trailing slash."""

    url: str
    key: str
    other_key: str
    """Of a tenant that may call another model only."""
    narrow_key: str
    """Of a tenant that may have one request in flight."""
    worker: WorkerProcess
    log_path: Path

    def requests(self) -> list[dict[str, Any]]:
        """The router's log lines of finished requests, without probes."""
        lines = whole_lines(self.log_path.read_text())
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if entry["event"] == "request finished"]

    def worker_log(self) -> str:
        """What the worker and the processes of its engine wrote last, without finished requests."""
        lines = lines_so_far(self.worker.errors)
        return "\n".join([line for line in lines if '"request finished"' not in line][-200:])


@contextmanager
def keyed_fleet(home: Path, engine: EngineUnderTest = OWN) -> Iterator[KeyedFleet]:
    """With a context of 1,024 tokens and 8 MB of KV cache; `/metrics` is open."""
    keys = PlantedKeys()
    key, other_key = keys.add("ours").text, keys.add("theirs", models=["another"]).text
    narrow_key = keys.add("narrow", max_in_flight_requests=1).text
    keys_path, endpoints_path, log_path = (
        home / name for name in ("keys.json", "endpoints.json", "router.log")
    )
    keys_path.write_bytes(encode_key_file(keys.file))
    keys_path.chmod(0o600)
    model_path = tiny_served_model(home / "model", **engine.model_fields)
    flags = ("--kv-cache-bytes", "8000000", "--uid", WORKER_UID, *engine.flags)
    with running_worker(model_path, *flags, token=WORKER_TOKEN, start_seconds=engine.start_seconds) as worker:
        endpoint = {"uid": WORKER_UID, "name": WORKER_UID, "url": worker.url, "token": WORKER_TOKEN}
        endpoints_path.write_text(json.dumps([endpoint]))
        endpoints_path.chmod(0o600)
        flags = ("--endpoints-file", str(endpoints_path), "--keys-file", str(keys_path), "--open-metrics")
        # As `warmfleet up` has it: a burst is answered whole, however busy the machine is.
        flags += ("--max-wait-seconds", "60")
        with log_path.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "warmfleet_router", "--port", "0", *flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "WARMFLEET_HOME": str(home)},
            )
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line, f"the router printed nothing; exit code {process.wait()}"
                url = f"http://127.0.0.1:{json.loads(line)['port']}"
                wait_for(
                    lambda: httpx.get(f"{url}/readyz", verify=NO_TLS).status_code == 200,
                    "the router is ready",
                )
                yield KeyedFleet(url, key, other_key, narrow_key, worker, log_path)
            finally:
                process.kill()
                process.communicate()
