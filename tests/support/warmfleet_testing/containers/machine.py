"""What containers must leave on the machine as it was: kernel settings, mounts, control groups, processes."""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from warmfleet_devcluster.real_node.cgroups import remove_node_cgroups
from warmfleet_devcluster.real_node.configuration import KERNEL_SETTINGS
from warmfleet_runtime.home import warmfleet_home
from warmfleet_testing.containers.figures import Figures

_SAMPLE_SECONDS = 1.0
_KUBELET_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")


@dataclass(frozen=True, slots=True)
class Traces:
    """What a node or a builder could leave; two values of the same machine are compared."""

    kernel_settings: dict[str, str]
    mounts: frozenset[str]
    """Paths."""
    control_groups: frozenset[str]
    kubelet_socket_at_ns: int | None
    """When the machine's own kubelet made its socket for device plugins, if there is one."""


def traces(folder: Path) -> Traces:
    """As they are now; of mounts, those at or below `folder` and below /run."""
    rows = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    groups = [
        str(path)
        for name in ("kubepods", "k8s.io")
        for pattern in (name, f"*/{name}")
        for path in Path("/sys/fs/cgroup").glob(pattern)
    ]
    return Traces(
        kernel_settings={
            name: (Path("/proc/sys") / name).read_text()
            for name in KERNEL_SETTINGS
            if (Path("/proc/sys") / name).exists()
        },
        mounts=frozenset(
            row for row in rows if row.startswith((str(folder), "/run/netns", "/run/containerd"))
        ),
        control_groups=frozenset(groups),
        kubelet_socket_at_ns=_KUBELET_SOCKET.lstat().st_mtime_ns if _KUBELET_SOCKET.exists() else None,
    )


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Fail unless the traces are afterwards what they were before, without what a killed node left."""
    remove_node_cgroups()
    before = traces(folder)
    yield
    assert traces(folder) == before


@contextmanager
def most_disk_taken(figures: Figures) -> Iterator[None]:
    """Add how much more of the disk with the warmfleet home was taken at most, by all that runs here."""
    ended = threading.Event()
    home = warmfleet_home()
    before = most = shutil.disk_usage(home).used

    def sample() -> None:
        nonlocal most
        while not ended.wait(_SAMPLE_SECONDS):
            most = max(most, shutil.disk_usage(home).used)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield
    finally:
        ended.set()
        sampler.join()
        figures.add("disk at the peak, beyond the start", (most - before) / 1e9, "GB")


def processes_of(program: str, folder: Path) -> list[int]:
    """PIDs on this machine of a program whose command line names `folder`."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split() for line in listed.splitlines()[1:]]
    return [
        int(row[0])
        for row in rows
        if Path(row[1]).name == program and any(str(folder) in part for part in row[2:])
    ]
