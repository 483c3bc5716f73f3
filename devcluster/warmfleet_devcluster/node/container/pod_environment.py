"""What a container gets from its pod and its node."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from warmfleet_devcluster.node.container.backoff import Backoff
from warmfleet_devcluster.node.host.images import ImageList
from warmfleet_devcluster.node.host.network import PodNetwork
from warmfleet_devcluster.node.references.downward_api import PodContext
from warmfleet_devcluster.node.references.pod_objects import PodObjects
from warmfleet_devcluster.node.volumes.pod_volumes import PodVolumes

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodEnvironment:
    """What all containers of one pod share, from the pod's arrival on the node to its end."""

    folder: Path
    volumes: PodVolumes
    objects: PodObjects
    images: ImageList
    probe_session: aiohttp.ClientSession
    backoff: Backoff
    retry_seconds: float
    """Between two attempts to configure a container or to prepare the pod."""
    cluster_env: Mapping[str, str]
    host_ip: str
    allocatable: Mapping[str, str]
    pod: Callable[[], Json]
    """The pod as the API server last sent it."""
    changed: Callable[[], None]
    """Called when a container's state has changed."""

    def context(self, pod_ip: str) -> PodContext:
        """What the downward API exposes of the pod now."""
        return PodContext(self.pod(), pod_ip, self.host_ip, self.allocatable)


@dataclass(frozen=True, slots=True)
class PodSandbox:
    """What the runtime makes before the first container: the pod's network, and its files in /etc."""

    network: PodNetwork
    etc_files: Mapping[str, str]
    """Path -> content that every container finds, such as /etc/hosts."""
