"""A fleet that `warmfleet up` starts in a home of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class LocalFleet:
    """`warmfleet up --detach`; the router's port is `port`, and workers have the next ones."""

    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        self.url = f"http://127.0.0.1:{port}"
        self._environment = {**os.environ, "WARMFLEET_HOME": str(home)}
        self._port = port

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

    def start(self, manifest: Mapping[str, Any], *options: str) -> None:
        """Return when it serves."""
        path = self.home / "fleet.yaml"
        path.write_text(json.dumps(manifest))
        ports = ("--port", str(self._port), "--worker-port", str(self._port + 1))
        self.run("up", "-f", str(path), *ports, *options, "--detach", "--output", "json")

    def workers(self, name: str) -> dict[str, dict[str, Any]]:
        """What `warmfleet status` has of each worker of the fleet of that name."""
        (fleet,) = json.loads(self.run("status", "--name", name, "--output", "json"))["fleets"]
        return {process["name"]: process for process in fleet["processes"] if process["role"] == "worker"}
