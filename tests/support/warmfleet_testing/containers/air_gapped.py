"""docs/how-to/air-gapped.md as it stands: the commands of its section on files, each run where it belongs."""

import re
import shlex
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
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == len(Commands._fields), f"{_DOCUMENT}, {_SECTION.strip()}: {len(blocks)} blocks"
    return Commands(*blocks)


def image_name(target: str) -> str:
    """The name that the document gives an image."""
    template = re.findall(r"image=(\S+)", commands().outside)[0]
    return str(template).replace("$name", target)


class CarriedTree:
    """A copy of the tree in which the commands for outside run; the others run in it later.

    The commands write archives of images and their names into it, and nothing into the tree itself.
    """

    def __init__(self, folder: Path, process: "subprocess.Popen[str]", log: Path) -> None:
        self._folder = folder
        self._process = process
        self._log = log

    def archived_after_seconds(self) -> float:
        """Wait until the archives are written; how long that took from its beginning."""
        code = self._process.wait(_BUILD_SECONDS)
        lines = self._log.read_text().splitlines()
        assert code == 0, "\n".join(lines[-50:])
        return float(lines[-1])

    def remove_archives(self) -> None:
        """They are as large as the images."""
        for archive in self._folder.glob("*.tar"):
            archive.unlink()

    def run_without_internet(self, cluster: DevCluster, script: str) -> str:
        """What commands print in the network of the cluster, of which no route leads out."""
        assert self._run(cluster, "ip route show default") == ""
        return self._run(cluster, script)

    def _run(self, cluster: DevCluster, script: str) -> str:
        found_here = {
            "CONTAINERD_ADDRESS": str(cluster.folder.part("node-0") / "containerd.sock"),
            "KUBECONFIG": str(cluster.folder.pki / "admin.kubeconfig"),
        }
        # In a PID namespace: what the commands leave in the background ends with them.
        command = cluster.inside("unshare", "--pid", "--fork", "--kill-child", "bash", "-euc", script)
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=cluster.environment | found_here,
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def carried_tree(store: ImageStore) -> Iterator[CarriedTree]:
    """Copy the tree and begin the commands for outside there; what still runs at the end is killed."""
    folder, log = store.folder / "tree", store.folder / "archives.log"
    folder.mkdir()
    # As git has it, with changes and new files; times stay, by which a builder knows files again.
    store.shell(
        "set -o pipefail; git ls-files --cached --others --exclude-standard -z"
        f" | tar --create --null --files-from - | tar --extract --directory {shlex.quote(str(folder))}"
    )
    script = f"exec > {shlex.quote(str(log))} 2>&1\ncd {shlex.quote(str(folder))}\n{commands().outside}"
    with store.begin("bash", "-euc", f"{script}\necho $SECONDS") as process:
        try:
            yield CarriedTree(folder, process, log)
        finally:
            process.kill()
