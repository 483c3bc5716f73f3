"""The volumes of one pod as folders of this machine."""

import asyncio
import ctypes
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from warmfleet_contracts.resources.quantities import parse_quantity
from warmfleet_devcluster.node.errors import ImageError, VolumeError
from warmfleet_devcluster.node.host.images import ImageList
from warmfleet_devcluster.node.references.downward_api import PodContext
from warmfleet_devcluster.node.references.pod_objects import PodObjects
from warmfleet_devcluster.node.volumes.atomic_folder import write_atomically
from warmfleet_devcluster.node.volumes.contents import FILE_SOURCES, referenced_by_volume, volume_files
from warmfleet_devcluster.node.volumes.mount import Mount

Json = dict[str, Any]

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH: Final = 2


class PodVolumes:
    """One subfolder of `folder` per volume; a tmpfs for an emptyDir in memory, and for nothing else."""

    def __init__(self, pod: Json, folder: Path, objects: PodObjects, images: ImageList) -> None:
        self._volumes: list[Json] = pod["spec"].get("volumes", [])
        self._group: int | None = pod["spec"].get("securityContext", {}).get("fsGroup")
        self._folder = folder
        self._objects = objects
        self._images = images
        self._places: dict[str, Path] = {}
        self._in_memory: list[Path] = []

    async def prepare(self, context: PodContext) -> None:
        """Makes every volume. Raises VolumeError or ImageError for the first that cannot be made yet."""
        for volume in self._volumes:
            if volume["name"] not in self._places:
                self._places[volume["name"]] = await self._make(volume, context)

    async def refresh(self, context: PodContext) -> None:
        """Rewrites the folders of changed Secrets, ConfigMaps, labels and tokens. Raises VolumeError."""
        for volume in self._volumes:
            if any(source in volume for source in FILE_SOURCES):
                await self._write(volume, context)

    def mounts(self, container: Json) -> list[Mount]:
        """Bind mounts of one container. Raises VolumeError for a subPath that leaves its volume."""
        return [self._mount(entry) for entry in container.get("volumeMounts", [])]

    def remove(self) -> None:
        """Frees memory and disk; folders behind claims and hostPath stay."""
        for place in self._in_memory:
            _LIBC.umount2(str(place).encode(), _MNT_DETACH)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _make(self, volume: Json, context: PodContext) -> Path:
        place = self._folder / str(volume["name"])
        if any(source in volume for source in FILE_SOURCES):
            await self._write(volume, context)
            return place
        if "emptyDir" in volume:
            self._make_empty(place, volume["emptyDir"] or {})
            return place
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            return _made(Path(await self._objects.claimed_folder(claim)))
        if "hostPath" in volume:
            return _host_path(volume["hostPath"])
        if "image" in volume:
            image = self._images.find(volume["image"].get("reference", ""))
            if not image.folder:
                raise ImageError(f"{image.reference} cannot be mounted: it names no folder")
            return Path(image.folder)
        kinds = sorted(set(volume) - {"name"})
        raise VolumeError(f"volume {volume['name']}: {kinds} is not supported by process nodes")

    def _make_empty(self, place: Path, source: Json) -> None:
        place.mkdir(parents=True, exist_ok=True)
        if source.get("medium") == "Memory":
            limit = f",size={int(parse_quantity(source['sizeLimit']))}" if source.get("sizeLimit") else ""
            if _LIBC.mount(b"tmpfs", str(place).encode(), b"tmpfs", 0, f"mode=777{limit}".encode()) != 0:
                raise VolumeError(f"no tmpfs for {place.name}: {os.strerror(ctypes.get_errno())}")
            self._in_memory.append(place)
        if self._group is not None:
            os.chown(place, -1, self._group)
        # The set-group-id bit keeps new files with fsGroup.
        place.chmod(0o2777 if self._group is not None else 0o777)

    async def _write(self, volume: Json, context: PodContext) -> None:
        found = await self._objects.config_objects(*referenced_by_volume(volume))
        tokens: dict[str, str] = {}
        for source in (volume.get("projected") or {}).get("sources", []):
            if "serviceAccountToken" in source:
                wanted = source["serviceAccountToken"]
                tokens[wanted["path"]] = await self._objects.token(wanted)
        files = volume_files(volume, context, found, lambda wanted: tokens[wanted["path"]])
        await asyncio.to_thread(write_atomically, self._folder / volume["name"], files, self._group)

    def _mount(self, entry: Json) -> Mount:
        volume = next(volume for volume in self._volumes if volume["name"] == entry["name"])
        place = self._places[entry["name"]]
        read_only = bool(entry.get("readOnly")) or _is_read_only(volume)
        inner = entry.get("subPath", "")
        if inner:
            source = (place / inner).resolve()
            if not source.is_relative_to(place.resolve()):
                raise VolumeError(f"subPath {inner} leaves volume {entry['name']}")
            if not source.exists():
                source.mkdir(parents=True)
                source.chmod(place.stat().st_mode & 0o7777)
        else:
            source = place
        return Mount(source=str(source), target=entry["mountPath"], read_only=read_only)


def _is_read_only(volume: Mapping[str, Any]) -> bool:
    claim = volume.get("persistentVolumeClaim") or {}
    return (
        bool(claim.get("readOnly")) or "image" in volume or any(source in volume for source in FILE_SOURCES)
    )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _host_path(source: Json) -> Path:
    path, kind = Path(source["path"]), source.get("type", "")
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    if not path.exists():
        raise VolumeError(f"hostPath type check failed: {path} does not exist")
    return path
