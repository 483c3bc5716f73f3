"""What discovery last knew, on disk: a router that starts while the API server is away serves by it.

It holds names, pod uids and addresses, and no token: those are derived, and a worker has to prove to hold its
own, so that an address which is another pod's by now gets nothing.
"""

from pathlib import Path
from typing import Final

import msgspec
import structlog

from warmfleet_router.discovery.resources import EndpointSliceObject, ModelDeploymentObject
from warmfleet_runtime.files import write_file_atomically

MAX_BYTES: Final = 32 * 1024 * 1024
VERSION: Final = 1

_log = structlog.get_logger("warmfleet.router.discovery")


class LastGood(msgspec.Struct, frozen=True):
    """The objects of a cluster at one moment."""

    namespaces: tuple[str, ...]
    """That were asked for: what others hold is not known from this."""
    deployments: tuple[ModelDeploymentObject, ...]
    slices: tuple[EndpointSliceObject, ...]
    version: int = VERSION


class LastGoodFile:
    """One file, readable by its owner; whatever is wrong with it costs a warning and nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, namespaces: tuple[str, ...]) -> LastGood | None:
        """What was kept; None if there is nothing usable for these namespaces."""
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            kept = msgspec.json.decode(content, type=LastGood)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("the last list on disk cannot be used", reason=str(error))
            return None
        return kept if kept.version == VERSION and kept.namespaces == namespaces else None

    def write(self, kept: LastGood) -> None:
        """Keep it in place of what was there."""
        content = msgspec.json.encode(kept)
        if len(content) > MAX_BYTES:
            _log.warning("the list is too large to be kept on disk", bytes=len(content), limit=MAX_BYTES)
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_file_atomically(self._path, content)
        except OSError as error:
            _log.warning("the list cannot be kept on disk", reason=str(error))
