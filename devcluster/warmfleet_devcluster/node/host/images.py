"""The images of a node: what an image reference stands for on this machine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from warmfleet_devcluster.node.errors import ImageError, NodeError


@dataclass(frozen=True, slots=True)
class Image:
    """One image: a program with its environment, or a folder of files for an image volume."""

    reference: str
    entrypoint: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    """What CMD is in a Dockerfile: used when the container gives neither command nor args."""
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = "0"
    """`uid`, `uid:gid`, or a name that is not numeric."""
    workdir: str = "/"
    paths: tuple[str, ...] = ()
    """Folders that the program needs to reach, beyond its PATH, PYTHONPATH and entry point."""
    folder: str = ""
    """What an image volume shows; empty if the image cannot be mounted."""


class ImageList:
    """The images that this node can run. A file stands for the registry; each pull reads it if it changed."""

    def __init__(self, path: Path) -> None:
        """Reads `{"images": {reference: {entrypoint, args, env, user, workdir, paths, folder}}}`.

        Raises:
            NodeError: the file is no such list.
        """
        self._path = path
        self._version = (0, 0)
        self._images: Mapping[str, Image] = {}
        self._read()

    def find(self, reference: str) -> Image:
        """The image; raises ImageError with a registry's message."""
        try:
            self._read()
        except NodeError as error:
            raise ImageError(f'Failed to pull image "{reference}": {error}') from error
        try:
            return self._images[reference]
        except KeyError:
            raise ImageError(
                f'Failed to pull image "{reference}": {reference}: not on the list of this node'
            ) from None

    def _read(self) -> None:
        """Reads the file if it has changed."""
        try:
            status = self._path.stat()
            version = (status.st_mtime_ns, status.st_ino)
            if version != self._version:
                listed: dict[str, dict[str, Any]] = json.loads(self._path.read_text())["images"]
                self._images = {reference: _image(reference, entry) for reference, entry in listed.items()}
                self._version = version
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise NodeError(f"{self._path} is no list of images: {error!r}") from error


def _image(reference: str, entry: Mapping[str, Any]) -> Image:
    return Image(
        reference=reference,
        entrypoint=tuple(entry.get("entrypoint", ())),
        args=tuple(entry.get("args", ())),
        env=dict(entry.get("env", {})),
        user=str(entry.get("user", "0")),
        workdir=entry.get("workdir", "/"),
        paths=tuple(entry.get("paths", ())),
        folder=entry.get("folder", ""),
    )
