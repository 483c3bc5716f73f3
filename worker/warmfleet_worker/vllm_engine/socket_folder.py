"""The folder of an engine's sockets: only its user can enter it, and it goes with the engine."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "warmfleet-vllm-"
_MAX_REMOVED: Final = 1000
"""Folders of engines before that one start removes."""


@contextmanager
def socket_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder in `parent`, by default that for temporary files; gone afterwards.

    A killed engine leaves its folder: the next start removes those that no process has locked, as the engine
    does with its own. Folders of other users, and links, are left alone.

    with socket_folder() as folder:
        ...  # bind sockets in it
    """
    parent = parent or Path(tempfile.gettempdir())
    _remove_abandoned(parent)
    folder, lock = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # Another start may remove it until it is locked.
        with suppress(FileNotFoundError):
            lock = _lock(folder)
            if lock is not None:
                if folder.exists():
                    return folder, lock
                os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for folder in sorted(parent.glob(f"{_PREFIX}*"))[:_MAX_REMOVED]:
        with suppress(OSError):
            lock = _lock(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock until it is closed; None if the folder is another one's.

    Raises:
        OSError: there is no such folder, or it is a link.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    is_ours = False
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
    except BlockingIOError:
        pass  # of a live engine
    finally:
        if not is_ours:
            os.close(descriptor)
    return descriptor if is_ours else None
