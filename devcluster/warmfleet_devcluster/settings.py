"""Settings of a devcluster."""

from pathlib import Path
from typing import Final

import msgspec

from warmfleet_devcluster.errors import DevclusterError
from warmfleet_devcluster.network.addresses import MAX_NODES
from warmfleet_runtime.kubernetes.informer import WatchTiming

MAX_HOLLOW_NODES: Final = 200
WATCH_TIMING: Final = WatchTiming(watch_seconds=300.0, slack_seconds=30.0, longest_backoff_seconds=1.0)
"""An API server that was restarted is followed again within a second."""
CONTEXT: Final = "warmfleet-devcluster"
"""Name of the only context, cluster and user in a devcluster's kubeconfig."""


class DevclusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One devcluster. Everything it writes is below `state`."""

    state: Path
    home: Path
    """The warmfleet home: `models` and `native` for the images, `controlplane` for the programs."""
    binaries: Path
    nodes: int = 2
    """Process nodes; without any, no pod ever runs."""
    pretend: dict[str, int] = {}
    """Extended resources that every process node claims to have, as `nvidia.com/gpu`: 2."""
    node_grace_seconds: int = 20
    """A node without a heartbeat for so long is marked Unknown; Kubernetes' own default is 50 s."""
    hollow: int = 0
    """Hollow nodes, whose pods become ready without running."""
    real_node: Path | None = None
    """Folder of kubelet and pause: a real node beside the process nodes. None: no such node."""
    api_port: int = 0
    """Port of the API server on the host's loopback; 0 takes a free one."""
    attached: bool = False
    """Whether the devcluster ends when the standard input of its supervisor does."""
    owner: tuple[int, int] | None = None
    """uid and gid that own the kubeconfig and the chart's values; None leaves them to root."""
    ready_seconds: float = 120.0
    """Most seconds until everything is ready."""

    def __post_init__(self) -> None:
        if not 0 <= self.nodes <= MAX_NODES - 1:
            raise DevclusterError(f"a devcluster has 0 to {MAX_NODES - 1} process nodes, not {self.nodes}")
        if not 0 <= self.hollow <= MAX_HOLLOW_NODES:
            raise DevclusterError(f"a devcluster has 0 to {MAX_HOLLOW_NODES} hollow nodes, not {self.hollow}")
        if any(amount < 0 for amount in self.pretend.values()):
            raise DevclusterError("--pretend: an amount cannot be negative")

    @property
    def addressed_nodes(self) -> int:
        """Nodes with an address of their own: process nodes, then the real node."""
        return self.nodes + (self.real_node is not None)
