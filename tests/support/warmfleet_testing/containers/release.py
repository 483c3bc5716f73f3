"""The chart's release on a real node, as tests ask it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from warmfleet_testing.cluster.cluster import DevCluster, eventually
from warmfleet_testing.cluster.control_plane import KubectlError
from warmfleet_testing.containers.builder import chart_values, reference
from warmfleet_testing.resources.chart_render import CHART

NAMESPACE: Final = "models"
_CONNECT: Final = """
import socket, sys
try: socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3).close(); print("connected")
except TimeoutError: print("dropped")
except OSError as error: print(error.strerror)
"""
_ASK: Final = """
import os, time, urllib.request
answered = failed = 0
while answered + failed < 100 or not os.path.exists("/tmp/stop"):
    try:
        urllib.request.urlopen("http://warmfleet-router/v1/models", timeout=10).read()
        answered += 1
    except OSError as error:
        failed += 1
        print(error, flush=True)
    time.sleep(0.02)
print("failed", failed)
"""


class Release:
    """An installed chart. `cluster` has one real node, `node-0`."""

    def __init__(self, cluster: DevCluster) -> None:
        self.cluster = cluster
        self.node_folder = cluster.folder.part("node-0")

    def install(self, values_file: Path, *targets: str) -> None:
        """`helm install --wait` with the images of `targets`."""
        values_file.write_text(json.dumps(chart_values(targets)))
        flags = ("--namespace", NAMESPACE, "--create-namespace", "--values", str(values_file))
        self.cluster.helm("install", "warmfleet", str(CHART), *flags, "--wait", "--timeout", "120s")

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("--namespace", NAMESPACE, *arguments)

    def pods(self, **labels: str) -> list[dict[str, Any]]:
        """Live pods, by labels of app.kubernetes.io."""
        wanted = {f"app.kubernetes.io/{key}": value for key, value in labels.items()}
        return [
            pod
            for pod in self.cluster.get("pods", "--namespace", NAMESPACE)["items"]
            if wanted.items() <= pod["metadata"]["labels"].items()
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def restarts(self) -> dict[str, int]:
        """Of every container, by pod."""
        return {
            pod["metadata"]["name"]: status["restartCount"]
            for pod in self.pods()
            for status in pod["status"].get("containerStatuses", [])
        }

    def add_stranger(self) -> None:
        """A pod that no policy of the chart names."""
        self._add_pod("stranger", "import time; time.sleep(3600)")

    @contextmanager
    def no_client_refused(self) -> Iterator[None]:
        """A client in the cluster asks all the time; fails unless each of its requests was answered."""
        self._add_pod("client", _ASK)
        try:
            yield
            eventually(self._stop_asking)
            eventually(lambda: self.cluster.read(NAMESPACE, "pod", "client")["status"]["phase"], "Succeeded")
            output = self.kubectl("logs", "client")
            assert output == "failed 0\n", output
        finally:
            self.kubectl("delete", "pod", "client", "--wait")

    def _stop_asking(self) -> bool:
        """False while the node does not answer for its pods."""
        try:
            self.kubectl("exec", "client", "--", "touch", "/tmp/stop")
        except KubectlError:
            return False
        return True

    def _add_pod(self, name: str, script: str) -> None:
        container = {
            "name": "python",
            "image": reference("router"),
            "imagePullPolicy": "Never",
            "command": ["python", "-c", script],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "containers": [container],
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
            },
        }
        self.cluster.kubectl("--namespace", NAMESPACE, "apply", "-f", "-", input=yaml.safe_dump(pod))
        self.kubectl("wait", "--for=condition=Ready", "--timeout=60s", f"pod/{name}")

    def connect(self, source: str, address: str, port: int) -> str:
        """How a TCP connection from a pod ends: `connected`, `dropped`, or the error."""
        return self.kubectl("exec", source, "--", "python", "-c", _CONNECT, address, str(port)).strip()
