"""A fleet that `warmfleet up` starts in a home of its own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self


class LocalFleet:
    """`warmfleet up --detach`.

    with LocalFleet.serving(manifest, 18080) as fleet:  # the router's port; workers have the next ones
        fleet.workers()
    """

    def __init__(self, home: Path, name: str, port: int) -> None:
        self.home = home
        self.url = f"http://127.0.0.1:{port}"
        self._environment = {**os.environ, "WARMFLEET_HOME": str(home)}
        self._name = name
        self._port = port

    @classmethod
    @contextmanager
    def serving(cls, manifest: Mapping[str, Any], port: int, *options: str) -> Iterator[Self]:
        """A fleet that serves until the block ends; `options` are those of `warmfleet up`."""
        with tempfile.TemporaryDirectory() as folder:
            fleet = cls(Path(folder), manifest["metadata"]["name"], port)
            fleet._start(manifest, options)
            try:
                yield fleet
            finally:
                fleet.run("down", "--name", fleet._name)

    def run(self, *arguments: str) -> str:
        """Stdout of a command."""
        finished = subprocess.run(
            [sys.executable, "-m", "warmfleet_cli", *arguments],
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
        )
        return finished.stdout

    def workers(self) -> dict[str, dict[str, Any]]:
        """What `warmfleet status` has of each worker."""
        (fleet,) = json.loads(self.run("status", "--name", self._name, "--output", "json"))["fleets"]
        return {process["name"]: process for process in fleet["processes"] if process["role"] == "worker"}

    def _start(self, manifest: Mapping[str, Any], options: Sequence[str]) -> None:
        path = self.home / "fleet.yaml"
        path.write_text(json.dumps(manifest))
        ports = ("--port", str(self._port), "--worker-port", str(self._port + 1))
        self.run("up", "-f", str(path), *ports, *options, "--detach", "--output", "json")
