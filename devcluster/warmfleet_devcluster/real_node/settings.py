"""Settings of a real node."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RealNodeSettings:
    """One node, as its command line describes it. All that it writes is below `state` or goes with it."""

    name: str
    kubeconfig: Path
    """With a client certificate of system:node:NAME in group system:nodes."""
    address: str
    """The node's own, in the cluster's network: InternalIP, and where the kubelet API listens."""
    pod_cidr: str
    kubelet: Path
    """The program."""
    pause: Path
    """The program in the image of every pod's sandbox."""
    state: Path
    client_ca: Path
    """Certificate authority of the kubelet API's clients."""
    serving_certificate: Path
    serving_key: Path
    dns: str
    cluster_domain: str = "cluster.local"

    @property
    def containerd_socket(self) -> Path:
        """Where containerd listens, for the kubelet and for `ctr`."""
        return self.state / "containerd.sock"

    @property
    def resolv_conf(self) -> Path:
        return self.state / "resolv.conf"

    @property
    def cni_folder(self) -> Path:
        return self.state / "cni"
