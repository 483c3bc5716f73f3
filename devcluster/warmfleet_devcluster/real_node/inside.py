"""The first process in the namespaces of a real node: starts containerd and kubelet, again if they end.

`python -m warmfleet_devcluster.real_node.inside FILE`; FILE is a `NodePlan` in JSON. The namespaces of PIDs
and mounts are its own: all that it mounts, and every process of the node, pods included, is gone when it
ends, however that happens.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

_RESTART_SECONDS: Final = 1.0
_SOCKET_SECONDS: Final = 30.0
_PROC_SYS: Final = Path("/proc/sys")


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What runs in the node, and what it sees of the machine."""

    containerd: list[str]
    kubelet: list[str]
    socket: str
    """Of containerd; the kubelet starts once it is there."""
    folders: list[str]
    """Shared with the machine by default: the node gets empty ones of its own."""
    kernel_settings: dict[str, str]
    """Name below /proc/sys to the file that the node sees there."""
    pause_archive: str
    """Imported before the kubelet starts."""


def prepare(plan: NodePlan) -> None:
    """Make this mount namespace a node's."""
    _run("mount", "--make-rshared", "/")  # a kubelet passes mounts on to containers
    for folder in plan.folders:
        Path(folder).mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    for name, file in plan.kernel_settings.items():
        if (_PROC_SYS / name).exists():
            _run("mount", "--bind", file, str(_PROC_SYS / name))


def serve(plan: NodePlan) -> None:
    """Keep both programs running, as a service manager would, and reap what pods leave behind."""
    containerd = _started(plan.containerd)
    _await_socket(plan.socket, containerd)
    ctr = ["ctr", "--address", plan.socket, "--namespace", "k8s.io"]
    _run(*ctr, "images", "import", plan.pause_archive)
    kubelet = _started(plan.kubelet)
    while True:
        ended, status = os.wait()  # also orphans of containers: this is their first process
        if ended not in (containerd, kubelet):
            continue
        name = "containerd" if ended == containerd else "kubelet"
        print(f"{name} ended with {os.waitstatus_to_exitcode(status)}, starting it again", flush=True)  # noqa: T201
        time.sleep(_RESTART_SECONDS)
        if ended == containerd:
            containerd = _started(plan.containerd)
        else:
            kubelet = _started(plan.kubelet)


def _started(command: list[str]) -> int:
    return os.posix_spawnp(command[0], command, os.environ)


def _await_socket(socket: str, containerd: int) -> None:
    deadline = time.monotonic() + _SOCKET_SECONDS
    while not Path(socket).exists():
        if os.waitpid(containerd, os.WNOHANG)[0] or time.monotonic() > deadline:
            sys.exit("error: containerd does not start")
        time.sleep(0.1)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)  # noqa: S603 - the node's own commands, no shell


if __name__ == "__main__":
    PLAN = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=NodePlan)
    prepare(PLAN)
    serve(PLAN)
