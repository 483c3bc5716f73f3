"""The folder that models are kept in: whole ones by name, unfinished ones hidden beside them.

/models/<key>             a folder, or a link to one; there only when it is whole
/models/.fetching-<key>/  what a fetch has so far; a later one goes on from it
/models/.lock-<key>       held by the one process that fetches this model
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from warmfleet_contracts.errors import ModelError
from warmfleet_worker.model_store.fetch.errors import NoSpaceError
from warmfleet_worker.model_store.fetch.progress import Progress
from warmfleet_worker.model_store.manifest import (
    ModelManifest,
    check_file_sizes,
    describe_model_folder,
    read_manifest,
    write_manifest,
)

_LOCK_POLL_SECONDS: Final = 0.2


class ModelStore:
    """Where one model shall lie."""

    def __init__(self, into: Path) -> None:
        self.into = into
        self.work = into.with_name(f".fetching-{into.name}")
        self._lock = into.with_name(f".lock-{into.name}")

    def manifest(self) -> ModelManifest | None:
        """What lies there, if it is whole (sizes only: the worker compares every digest when it loads)."""
        try:
            manifest = read_manifest(self.into)
            if manifest is not None:
                check_file_sizes(self.into, manifest)
        except ModelError:
            return None
        return manifest

    @contextmanager
    def locked(self, progress: Progress) -> Iterator[None]:
        """Keep other fetches of this model away; the lock goes with the process.

        Raises:
            FetchError: somebody else held it until the time was up.
        """
        self.into.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    progress.report("another fetch of this model is at work, waiting")
                    progress.sleep(_LOCK_POLL_SECONDS)
            yield

    def require_space(self, needed_bytes: int) -> None:
        """Refuse to begin what cannot end.

        Raises:
            NoSpaceError: with the figures.
        """
        free_bytes = shutil.disk_usage(self.into.parent).free
        if needed_bytes > free_bytes:
            needed, free = (f"{size_bytes / 2**20:,.0f} MiB" for size_bytes in (needed_bytes, free_bytes))
            raise NoSpaceError(f"{needed} are needed at {self.into.parent}, {free} are free")

    def publish(self, source: str) -> ModelManifest:
        """Describe the finished work folder and move it to its place.

        Raises:
            ModelError: it holds no model.
        """
        manifest = describe_model_folder(self.work, source=source)
        write_manifest(self.work, manifest)
        _fsync(self.work)
        self._clear()
        self.work.rename(self.into)
        _fsync(self.into.parent)
        return manifest

    def copy(self, folder: Path) -> None:
        """Publish a copy of a whole folder."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(folder, self.work)
        self._clear()
        self.work.rename(self.into)
        _fsync(self.into.parent)

    def link(self, folder: Path) -> None:
        """Publish a link to a whole folder."""
        self._clear()
        self.into.symlink_to(folder)

    def _clear(self) -> None:
        """Take away what is damaged, or a link to what is gone: whole ones never come here."""
        if self.into.is_symlink() or self.into.is_file():
            self.into.unlink()
        elif self.into.exists():
            shutil.rmtree(self.into)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
