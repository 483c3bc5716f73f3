"""The folder of fetched models: complete ones by key, unfinished ones hidden beside them.

/models/<key>             a folder, or a link to one; exists only when it is complete
/models/.fetching-<key>/  files of an unfinished fetch; the next one continues it
/models/.lock-<key>       held by the one process that fetches this model
"""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from warmfleet_contracts.errors import ModelError
from warmfleet_runtime.files import sync_folder
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
    """The folder of one model and what belongs to its fetch: work folder and lock."""

    def __init__(self, into: Path) -> None:
        self.into = into
        self.work = into.with_name(f".fetching-{into.name}")
        self._lock = into.with_name(f".lock-{into.name}")

    def manifest(self) -> ModelManifest | None:
        """The manifest of a complete folder, else None (checks sizes; the worker compares digests)."""
        try:
            manifest = read_manifest(self.into)
            if manifest is not None:
                check_file_sizes(self.into, manifest)
        except ModelError:
            return None
        return manifest

    @contextmanager
    def locked(self, progress: Progress) -> Iterator[None]:
        """Hold the lock of this model; it ends with the process.

        Raises:
            FetchError: another process held it until the deadline.
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
        """Check free disk space before a download.

        Raises:
            NoSpaceError: too little; the text has the sizes.
        """
        free_bytes = shutil.disk_usage(self.into.parent).free
        if needed_bytes > free_bytes:
            needed, free = (f"{size_bytes / 2**20:,.0f} MiB" for size_bytes in (needed_bytes, free_bytes))
            raise NoSpaceError(f"{needed} are needed at {self.into.parent}, {free} are free")

    def publish(self, source: str) -> ModelManifest:
        """Write the manifest of the finished work folder and rename it to its place.

        Raises:
            ModelError: it contains no model.
        """
        manifest = describe_model_folder(self.work, source=source)
        write_manifest(self.work, manifest)
        sync_folder(self.work)
        self._clear()
        self.work.rename(self.into)
        sync_folder(self.into.parent)
        return manifest

    def copy(self, folder: Path) -> None:
        """Publish a copy of a complete folder."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(folder, self.work)
        self._clear()
        self.work.rename(self.into)
        sync_folder(self.into.parent)

    def link(self, folder: Path) -> None:
        """Publish a link to a complete folder."""
        self._clear()
        self.into.symlink_to(folder)

    def _clear(self) -> None:
        """Remove a damaged folder or a dangling link; complete folders are never cleared."""
        if self.into.is_symlink() or self.into.is_file():
            self.into.unlink()
        elif self.into.exists():
            shutil.rmtree(self.into)
