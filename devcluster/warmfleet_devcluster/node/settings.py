"""Settings of a process node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """One node, as its command line describes it."""

    name: str
    kubeconfig: Path
    """With a client certificate of system:node:NAME in group system:nodes."""
    address: str
    """The node's own, in the cluster's network: InternalIP, and where the kubelet API listens."""
    pod_cidr: str
    images: Path
    """The images that pods may name."""
    state: Path
    """Pods' files and logs; what earlier pods left there is removed at start."""
    client_ca: Path
    """Certificate authority of the kubelet API's clients."""
    serving_certificate: Path
    serving_key: Path
    client_name: str = "kube-apiserver-kubelet-client"
    """The only caller of the kubelet API."""
    pretend: Mapping[str, str] = field(default_factory=dict)
    """Resource -> amount that replaces the machine's: pretended accelerators, or less CPU or memory."""
    dns: str = "10.96.0.10"
    cluster_domain: str = "cluster.local"
    kubelet_port: int = 10250
    time_ratio: float = 1.0
    """Scales the waits between restarts and between attempts; tests shorten them."""
    volume_refresh_seconds: float = 3.0
    """Seconds between two reads of the Secrets and ConfigMaps behind volumes."""
    lease_seconds: float = 5.0
    """Between two renewals of a node's Lease; its status follows every second one."""
    shutdown_seconds: float = 8.0
    """The longest that pods get to end when the node itself is stopped."""
    max_pods: int = 110
