"""A real Kubernetes cluster with process nodes, for the length of a test run."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from warmfleet_cli.devcluster import compile_native_step
from warmfleet_runtime.process_identity import ProcessIdentity
from warmfleet_testing.cluster.control_plane import ControlPlane, KubectlError, running_control_plane

_HELM_SECONDS: Final = 300
_POLL_SECONDS: Final = 0.2


class DevCluster(ControlPlane):
    """A running devcluster whose nodes run pods."""

    def helm(self, *args: str) -> str:
        """What helm printed.

        Raises:
            KubectlError: it ended with another code than 0.
        """
        return self.run("helm", *args, timeout_seconds=_HELM_SECONDS)

    @contextmanager
    def port_forward(self, target: str, port: int, *, namespace: str = "default") -> Iterator[str]:
        """`kubectl port-forward TARGET :PORT`, as a URL on the host's loopback without a final slash."""
        process = subprocess.Popen(
            [self.binaries["kubectl"], "-n", namespace, "port-forward", target, f":{port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.match(r"Forwarding from 127\.0\.0\.1:(\d+)", line)
            if found is None:
                process.kill()
                raise KubectlError(f"port-forward {target}: {line}{process.stdout.read()}")
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.kill()
            process.communicate()

    def add_image(self, reference: str, **entry: Any) -> None:
        """Put an image on the nodes' list: `folder` for an image volume, `like` an image that is listed."""
        listed = json.loads(self.folder.images.read_text())
        like = entry.pop("like", None)
        listed["images"][reference] = {**(listed["images"][like] if like else {}), **entry}
        fresh = self.folder.images.with_suffix(".new")
        fresh.write_text(json.dumps(listed, indent=2))
        fresh.replace(self.folder.images)

    def component(self, name: str) -> ProcessIdentity:
        """A process of the cluster, such as `kube-apiserver`.

        That of a node takes its pods with it when it is killed, and nothing restarts it.
        """
        state = self.folder.read()
        assert state is not None
        return next(part.identity for part in state.components if part.name == name)

    @contextmanager
    def stopped_api_server(self) -> Iterator[None]:
        """The API server does not answer what the kernel accepts for it; it answers again afterwards."""
        pid = self.component("kube-apiserver").pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


def eventually(
    read: Callable[[], Any], wanted: Callable[[Any], bool] | Any = bool, *, seconds: float = 60.0
) -> Any:
    """Poll `read` until its value is `wanted`, or until `wanted` is true of it; returns the value."""
    deadline = time.monotonic() + seconds
    while True:
        seen = read()
        if wanted(seen) if callable(wanted) else seen == wanted:
            return seen
        assert time.monotonic() < deadline, f"after {seconds:g} s still {seen!r}"
        time.sleep(_POLL_SECONDS)


@contextmanager
def running_cluster(**settings: Any) -> Iterator[DevCluster]:
    """A cluster in a folder of its own, ready; all of it is gone afterwards. Two nodes by default.

    `settings` are fields of DevclusterSettings.
    """
    wanted = {"nodes": 2, "pretend": {"nvidia.com/gpu": 2}, **settings}
    with running_control_plane(**wanted) as control_plane:
        compile_native_step(control_plane.settings.home, lambda _: None)
        yield DevCluster(control_plane.settings, control_plane.process, control_plane.api)
