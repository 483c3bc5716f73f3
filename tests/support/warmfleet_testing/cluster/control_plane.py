"""A real Kubernetes API server with its controllers, and what tests ask of it."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx

from warmfleet_devcluster.control_plane.binaries import Binaries, find_binaries
from warmfleet_devcluster.lifecycle.running import start_supervisor
from warmfleet_devcluster.settings import DevclusterSettings
from warmfleet_devcluster.state import StateFolder
from warmfleet_runtime.home import warmfleet_home
from warmfleet_testing.cluster.api_client import api_client, read_object

_KUBECTL_SECONDS: Final = 120
_STOP_SECONDS: Final = 60


@dataclass(frozen=True)
class AuditWrite:
    """One request that may have written, as the API server's audit log has it."""

    unix_seconds: float
    """When the request arrived."""
    user: str
    user_agent: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    code: int


class KubectlError(AssertionError):
    """kubectl ended with an error; the text is its output."""


class ControlPlane:
    """A running devcluster: the API server as kubectl, clients and the audit log see it."""

    def __init__(
        self, settings: DevclusterSettings, process: "subprocess.Popen[bytes]", api: httpx.Client
    ) -> None:
        self.settings = settings
        self.process = process
        self.api = api
        self.folder = StateFolder(settings.state)
        self.kubeconfig: Path = self.folder.kubeconfig
        self.binaries = Binaries(settings.binaries)
        state = self.folder.read()
        assert state is not None
        self.url = state.api_url
        self.supervisor = state.supervisor

    @property
    def environment(self) -> dict[str, str]:
        """For a child process that shall find this cluster, and kubectl and helm."""
        path = f"{self.binaries.folder}{os.pathsep}{os.environ.get('PATH', '')}"
        # Discovery is cached by host and port, both of which the next control plane may have again.
        cache = str(self.settings.state / "kubectl-cache")
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "PATH": path, "KUBECACHEDIR": cache}

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - as in subprocess
        """What kubectl printed.

        Raises:
            KubectlError: it ended with another code than 0.
        """
        return self.run("kubectl", *args, input=input, timeout_seconds=_KUBECTL_SECONDS)

    def run(self, program: str, *args: str, timeout_seconds: float, input: str | None = None) -> str:  # noqa: A002
        """What one of the control plane's programs printed.

        Raises:
            KubectlError: it ended with another code than 0.
        """
        done = subprocess.run(
            [self.binaries[program], *args],
            input=input,
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=timeout_seconds,
            check=False,
        )
        if done.returncode != 0:
            raise KubectlError(f"{program} {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *args: str) -> Any:
        """`kubectl get ARGS -o json`, decoded."""
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def read(self, namespace: str, kind: str, name: str = "", **query: str) -> Any:
        """An object, or without a name the list of all; for what is polled.

        Raises:
            LookupError: it is not there.
        """
        return read_object(self.api, namespace, kind, name, **query)

    @property
    def network(self) -> Path:
        """Opens as the cluster's network namespace."""
        state = self.folder.read()
        assert state is not None
        return Path(f"/proc/{state.components[0].identity.pid}/ns/net")

    def inside(self, *command: str) -> list[str]:
        """A command line that runs `command` inside the cluster's network."""
        return ["nsenter", f"--net={self.network}", *command]

    def audit_writes(self, since: float = 0.0) -> list[AuditWrite]:
        """Every write, also a refused one, that arrived at or after `since` (unix seconds); oldest first."""
        with self.folder.audit_log.open() as log:
            writes = [_write(json.loads(line)) for line in log if line.endswith("\n")]
        return sorted((w for w in writes if w.unix_seconds >= since), key=lambda w: w.unix_seconds)


def _write(event: dict[str, Any]) -> AuditWrite:
    target = event.get("objectRef", {})
    return AuditWrite(
        unix_seconds=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
        user=event["user"].get("username", ""),
        user_agent=event.get("userAgent", ""),
        verb=event["verb"],
        resource=target.get("resource", ""),
        subresource=target.get("subresource", ""),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
    )


@contextmanager
def running_control_plane(**settings: Any) -> Iterator[ControlPlane]:
    """A control plane without nodes in a folder of its own, ready; all of it is gone afterwards.

    `settings` are fields of DevclusterSettings.
    """
    home = settings.pop("home", None) or warmfleet_home()
    with tempfile.TemporaryDirectory(prefix="wf-devcluster-") as folder:
        wanted = DevclusterSettings(
            **{
                "state": Path(folder),
                "home": home,
                "binaries": find_binaries(warmfleet_home()).folder,
                "nodes": 0,
                "attached": True,
                **settings,
            }
        )
        process = start_supervisor(wanted, lambda _: None).process
        try:
            with api_client(StateFolder(wanted.state).kubeconfig) as api:
                yield ControlPlane(wanted, process, api)
        finally:
            # Attached: the end of its input ends it.
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_STOP_SECONDS)
