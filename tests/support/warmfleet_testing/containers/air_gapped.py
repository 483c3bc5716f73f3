"""docs/how-to/air-gapped.md as it stands: the commands of its section on files, each run where it belongs."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from warmfleet_testing.cluster.cluster import DevCluster
from warmfleet_testing.containers.builder import ImageStore
from warmfleet_testing.resources.chart_render import REPOSITORY

_DOCUMENT: Final = REPOSITORY / "docs" / "how-to" / "air-gapped.md"
_SECTION: Final = "### By files, without a registry\n"
_VALUES: Final = REPOSITORY / "images.values.yaml"
_TARGETS: Final = ("operator", "router", "worker-cpu")
_BUILD_SECONDS: Final = 1500
_RUN_SECONDS: Final = 900


class Commands(NamedTuple):
    """The shell blocks of the section."""

    outside: str
    """Builds the images and writes an archive of each."""
    on_nodes: str
    """Imports the archives."""
    inside: str
    """Installs the chart and asks the model."""


def commands() -> Commands:
    """Read from the document."""
    section = _DOCUMENT.read_text().partition(_SECTION)[2].partition("\n### ")[0]
    return Commands(*re.findall(r"```sh\n(.*?)```", section, re.DOTALL))


def image_name(target: str) -> str:
    """The name that the document gives an image."""
    template = re.findall(r"image=(\S+)", commands().outside)[0]
    return str(template).replace("$name", target)


class ArchiveBuild:
    """The commands for outside, which run."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log

    def seconds(self) -> float:
        """Wait for their end; how long they took."""
        code = self._process.wait(_BUILD_SECONDS)
        lines = self._log.read_text().splitlines()
        assert code == 0, "\n".join(lines[-50:])
        return float(lines[-1])


@contextmanager
def archive_build(store: ImageStore) -> Iterator[ArchiveBuild]:
    """Begin to write archives of the images into the tree, which has none of them afterwards.

    The values that are written, too, stay for the block; an older file of theirs comes back.
    """
    before = _VALUES.read_bytes() if _VALUES.exists() else None
    remove_archives()
    log = store.folder / "archives.log"
    script = f"exec > {log} 2>&1\n{commands().outside}\necho $SECONDS"
    try:
        with store.begin("bash", "-euc", script) as process:
            try:
                yield ArchiveBuild(process, log)
            finally:
                process.kill()
    finally:
        remove_archives()
        _VALUES.unlink(missing_ok=True)
        if before is not None:
            _VALUES.write_bytes(before)


def remove_archives() -> None:
    """They are as large as the images."""
    for target in _TARGETS:
        (REPOSITORY / f"warmfleet-{target}.tar").unlink(missing_ok=True)


def run_without_internet(cluster: DevCluster, script: str) -> str:
    """What commands print in the network of the cluster, of which no route leads out."""
    assert _run(cluster, "ip route show default") == ""
    return _run(cluster, script)


def _run(cluster: DevCluster, script: str) -> str:
    found_here = {
        "CONTAINERD_ADDRESS": str(cluster.folder.part("node-0") / "containerd.sock"),
        "KUBECONFIG": str(cluster.folder.pki / "admin.kubeconfig"),
    }
    # In a PID namespace: what the commands leave in the background ends with them.
    command = cluster.inside("unshare", "--pid", "--fork", "--kill-child", "bash", "-euc", script)
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env=cluster.environment | found_here,
        capture_output=True,
        text=True,
        timeout=_RUN_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
