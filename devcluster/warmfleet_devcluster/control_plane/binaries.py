"""The control plane's programs: their names, their versions, and where `make controlplane` puts them."""

import hashlib
from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class GoModule:
    """Programs that are built from one Go module; its go.sum pins every source by hash.

    folder = CONTROL_PLANE.binaries_folder(warmfleet_home())
    """

    name: str
    """The target of `make` that builds them, and their folder in the warmfleet home."""
    folder: Path
    programs: Mapping[str, str]
    """Program to Go package, in the order they are built."""

    def binaries_folder(self, home: Path) -> Path:
        """Folder of the programs, named after the hash of the module's go.mod and go.sum.

        Raises:
            BinariesMissingError: the Go module is not there, as in an installed wheel.
        """
        digest = hashlib.sha256()
        try:
            for name in ("go.mod", "go.sum"):
                digest.update((self.folder / name).read_bytes())
        except OSError as error:
            raise BinariesMissingError(
                f"{self.folder} does not hold the Go module of {', '.join(self.programs)}",
                advice="run from a checkout of warmfleet, installed with `make setup`",
            ) from error
        return home / self.name / digest.hexdigest()[:16]


CONTROL_PLANE: Final = GoModule("controlplane", MODULE_FOLDER, TOOLS)
KUBELET: Final = GoModule(
    "kubelet",
    MODULE_FOLDER.with_name("kubelet"),
    {"kubelet": "k8s.io/kubernetes/cmd/kubelet", "pause": "./pause"},
)
"""A module of its own: only a real node needs it."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder that holds every one of a module's programs."""

    folder: Path
    module: GoModule = CONTROL_PLANE

    def __getitem__(self, tool: str) -> Path:
        assert tool in self.module.programs, tool
        return self.folder / tool

    @property
    def missing(self) -> list[str]:
        return [tool for tool in self.module.programs if not (self.folder / tool).is_file()]


def find_binaries(home: Path, module: GoModule = CONTROL_PLANE) -> Binaries:
    """The programs that `make controlplane` built, or the target of another module.

    Raises:
        BinariesMissingError: some are not there.
    """
    binaries = Binaries(module.binaries_folder(home), module)
    if binaries.missing:
        raise BinariesMissingError(
            f"not built: {', '.join(binaries.missing)} missing in {binaries.folder}",
            advice=f"`make {module.name}` builds it, once (minutes on two cores)",
        )
    return binaries
