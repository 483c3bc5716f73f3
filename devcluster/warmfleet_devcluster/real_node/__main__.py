"""`python -m warmfleet_devcluster.real_node`: runs one real node until SIGTERM; `--help` lists what it needs.

Needs root, and runs in the network namespace of the cluster. One at a time on a machine: all kubelets use the
same control groups.
"""

import argparse
import fcntl
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from warmfleet_devcluster.errors import DevclusterError, StartFailedError
from warmfleet_devcluster.real_node.cgroups import remove_node_cgroups
from warmfleet_devcluster.real_node.configuration import (
    KERNEL_SETTINGS,
    PAUSE_IMAGE,
    cni_config,
    containerd_config,
    kubelet_command,
    kubelet_config,
)
from warmfleet_devcluster.real_node.inside import NodePlan
from warmfleet_devcluster.real_node.pause_image import pause_archive
from warmfleet_devcluster.real_node.programs import check_programs
from warmfleet_devcluster.real_node.settings import RealNodeSettings
from warmfleet_runtime.die_with_parent import bound_command

LOCK: Final = Path("/run/warmfleet-real-node.lock")
_OWN_FOLDERS: Final = (
    "/run/netns",
    "/run/containerd",
    "/var/lib/cni",
    "/var/log/containers",
    # Where kubelets look for device plugins, wherever else they work: they remove the sockets of before.
    "/var/lib/kubelet",
    "/opt/containerd",
)
_UNSHARE: Final = "/usr/bin/unshare"


def main(arguments: list[str] | None = None) -> int:
    settings = parse_settings(sys.argv[1:] if arguments is None else arguments)
    try:
        check_programs()
        with alone():
            remove_node_cgroups()
            _serve(write_files(settings))
            if left := remove_node_cgroups():
                raise StartFailedError(f"control groups are still in use: {', '.join(map(str, left))}")
    except (DevclusterError, OSError) as error:
        advice = error.advice if isinstance(error, DevclusterError) else ""
        print(f"error: {error}\n       {advice}".rstrip(), file=sys.stderr)  # noqa: T201 - output of a command
        return 1
    return 0


def parse_settings(arguments: list[str]) -> RealNodeSettings:
    """Settings from a command line; exits with a usage message for one that makes no sense."""
    parser = argparse.ArgumentParser(
        prog="python -m warmfleet_devcluster.real_node",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="of system:node:NAME")
    parser.add_argument("--address", required=True, help="of the node, in the cluster's network")
    parser.add_argument("--pod-cidr", required=True)
    parser.add_argument("--kubelet", type=Path, required=True, help="the program")
    parser.add_argument("--pause", type=Path, required=True, help="the program in every sandbox")
    parser.add_argument("--state", type=Path, required=True, help="folder for all that the node writes")
    parser.add_argument("--client-ca", type=Path, required=True, help="signer of the kubelet API's clients")
    parser.add_argument("--serving-certificate", type=Path, required=True)
    parser.add_argument("--serving-key", type=Path, required=True)
    parser.add_argument("--dns", required=True)
    parser.add_argument("--cluster-domain")
    given = vars(parser.parse_args(arguments))
    given["state"] = given["state"].resolve()
    return RealNodeSettings(**given)


def write_files(settings: RealNodeSettings) -> Path:
    """Write what the node's programs read; returns the file of the `NodePlan`."""
    state = settings.state
    shown = state / "kernel-settings"
    for folder in (shown, settings.cni_folder):
        folder.mkdir(parents=True)
    kernel_settings = {}
    for name, value in KERNEL_SETTINGS.items():
        file = shown / name.replace("/", ".")
        file.write_text(f"{value}\n")
        kernel_settings[name] = str(file)
    settings.resolv_conf.write_text(f"nameserver {settings.dns}\n")
    (settings.cni_folder / "devcluster.conflist").write_text(json.dumps(cni_config(settings)))
    containerd, kubelet = state / "containerd.toml", state / "kubelet.json"
    containerd.write_text(containerd_config(settings))
    kubelet.write_text(json.dumps(kubelet_config(settings)))
    pause = state / "pause.tar"
    pause.write_bytes(pause_archive(PAUSE_IMAGE, settings.pause.read_bytes()))
    plan = NodePlan(
        containerd=["containerd", "--config", str(containerd), "--log-level", "warn"],
        kubelet=kubelet_command(settings, kubelet),
        socket=str(settings.containerd_socket),
        folders=list(_OWN_FOLDERS),
        kernel_settings=kernel_settings,
        pause_archive=str(pause),
    )
    file = state / "plan.json"
    file.write_bytes(msgspec.json.encode(plan))
    return file


def _serve(plan: Path) -> None:
    """Run the node until SIGTERM or SIGINT, or until it ends by itself, which is an error."""
    inside = [sys.executable, "-m", "warmfleet_devcluster.real_node.inside", str(plan)]
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
    node = subprocess.Popen(bound_command([_UNSHARE, *namespaces, *inside]))  # noqa: S603 - our own command
    stopped = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal stopped
        stopped = True
        # SIGKILL: unshare outlives SIGTERM, and --kill-child takes the rest with it.
        node.kill()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    code = node.wait()
    if not stopped:
        raise StartFailedError(f"the node ended with code {code}")


@contextmanager
def alone() -> Iterator[None]:
    """Be the only real node of this machine.

    Raises:
        StartFailedError: another one runs.
    """
    with LOCK.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartFailedError(
                "another real node runs on this machine, and two would share control groups"
            ) from None
        yield


if __name__ == "__main__":
    sys.exit(main())
