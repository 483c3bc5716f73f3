"""The images that a node knows: what an image reference stands for on this machine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

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


@dataclass(frozen=True, slots=True)
class ImageList:
    """References and their images. There is no registry behind it: what is not listed cannot be pulled."""

    images: Mapping[str, Image]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads `{"images": {reference: {entrypoint, args, env, user, workdir, paths, folder}}}`."""
        try:
            listed: dict[str, dict[str, Any]] = json.loads(path.read_text())["images"]
            return cls(
                {
                    reference: Image(
                        reference=reference,
                        entrypoint=tuple(entry.get("entrypoint", ())),
                        args=tuple(entry.get("args", ())),
                        env=dict(entry.get("env", {})),
                        user=str(entry.get("user", "0")),
                        workdir=entry.get("workdir", "/"),
                        paths=tuple(entry.get("paths", ())),
                        folder=entry.get("folder", ""),
                    )
                    for reference, entry in listed.items()
                }
            )
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise NodeError(f"{path} is no list of images: {error!r}") from error

    def find(self, reference: str) -> Image:
        """The image; raises ImageError with what a registry would have said."""
        try:
            return self.images[reference]
        except KeyError:
            raise ImageError(
                f'Failed to pull image "{reference}": {reference}: not on the list of this node'
            ) from None
