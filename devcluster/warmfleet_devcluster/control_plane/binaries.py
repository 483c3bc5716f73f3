"""The control plane's programs: their names, their versions, and where `make controlplane` puts them."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmfleet_devcluster.errors import BinariesMissingError

KUBERNETES_VERSION: Final = "v1.36.3"
HELM_VERSION: Final = "v4.3.1"

TOOLS: Final[dict[str, str]] = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "helm": "helm.sh/helm/v4/cmd/helm",
}
"""Program to Go package, in the order they are built."""

MODULE_FOLDER: Final = Path(__file__).parents[2] / "controlplane"
"""The Go module that pins every source by hash."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder that holds every one of the programs."""

    folder: Path

    def __getitem__(self, tool: str) -> Path:
        assert tool in TOOLS, tool
        return self.folder / tool

    @property
    def missing(self) -> list[str]:
        return [tool for tool in TOOLS if not (self.folder / tool).is_file()]


def binaries_folder(home: Path, module: Path = MODULE_FOLDER) -> Path:
    """Folder of the programs built from `module`, named after the hash of its go.mod and go.sum.

    Raises:
        BinariesMissingError: the Go module is not there, as in an installed wheel.
    """
    digest = hashlib.sha256()
    try:
        for name in ("go.mod", "go.sum"):
            digest.update((module / name).read_bytes())
    except OSError as error:
        raise BinariesMissingError(
            f"{module} does not hold the control plane's Go module",
            advice="run from a checkout of warmfleet, installed with `make setup`",
        ) from error
    return home / "controlplane" / digest.hexdigest()[:16]


def find_binaries(home: Path, module: Path = MODULE_FOLDER) -> Binaries:
    """The programs that `make controlplane` built.

    Raises:
        BinariesMissingError: some are not there.
    """
    binaries = Binaries(binaries_folder(home, module))
    if binaries.missing:
        raise BinariesMissingError(
            f"the control plane is not built: {', '.join(binaries.missing)} missing in {binaries.folder}",
            advice="`make controlplane` builds it, once (8 minutes on two cores)",
        )
    return binaries
