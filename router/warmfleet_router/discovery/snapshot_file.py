"""The last list of the cluster's objects, on disk, for a router that starts while the API server is away.

It holds names, pod uids and addresses, and no token: tokens are derived, and a worker has to prove that it
holds its own, so that an address which is another pod's by now gets no request.
"""

from pathlib import Path
from typing import Final

import msgspec
import structlog

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_router.discovery.resources import EndpointSliceObject, ModelDeploymentObject
from warmfleet_runtime.files import write_file_atomically

MAX_BYTES: Final = 32 * 1024 * 1024
VERSION: Final = 1

_log = structlog.get_logger("warmfleet.router.discovery")


class ClusterSnapshot(msgspec.Struct, frozen=True):
    """The objects of a cluster at one moment."""

    namespaces: tuple[str, ...]
    """Those that were listed; empty: all."""
    deployments: tuple[ModelDeploymentObject, ...]
    slices: tuple[EndpointSliceObject, ...]
    version: int = VERSION


class SnapshotFile:
    """One file, readable by its owner; one that cannot be read or written costs a warning, nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, namespaces: tuple[str, ...]) -> ClusterSnapshot | None:
        """The last snapshot; None if there is no usable one of these namespaces."""
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            snapshot = msgspec.json.decode(content, type=ClusterSnapshot)
        except FileNotFoundError:
            return None
        except (OSError, *UNDECODABLE) as error:
            _log.warning("the last list on disk cannot be used", reason=str(error))
            return None
        return snapshot if (snapshot.version, snapshot.namespaces) == (VERSION, namespaces) else None

    def write(self, snapshot: ClusterSnapshot) -> None:
        """Replace the file."""
        content = msgspec.json.encode(snapshot)
        if len(content) > MAX_BYTES:
            _log.warning("the list is too large to be kept on disk", bytes=len(content), limit=MAX_BYTES)
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_file_atomically(self._path, content)
        except OSError as error:
            _log.warning("the list cannot be kept on disk", reason=str(error))
