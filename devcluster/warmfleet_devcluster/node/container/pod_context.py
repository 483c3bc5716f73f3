"""What the containers of one pod share while it runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from warmfleet_devcluster.node.container.backoff import Backoff
from warmfleet_devcluster.node.container.environment import PodContext
from warmfleet_devcluster.node.container.pod_objects import PodObjects
from warmfleet_devcluster.node.host.images import ImageList
from warmfleet_devcluster.node.host.network import PodNetwork
from warmfleet_devcluster.node.volumes.volumes import PodVolumes

Json = dict[str, Any]


@dataclass(slots=True)
class PodEnvironment:
    """Everything a container needs from its pod and its node. The pod fills it in as it is set up."""

    pod: Json
    folder: Path
    context: PodContext
    volumes: PodVolumes
    objects: PodObjects
    images: ImageList
    probe_session: aiohttp.ClientSession
    backoff: Backoff
    retry_seconds: float
    cluster_env: Mapping[str, str]
    changed: Callable[[], None]
    """Says that a container's state has changed."""
    network: PodNetwork | None = None
    files: Mapping[str, str] | None = None
    """Path -> content that every container finds, such as /etc/hosts."""
