"""The folder of an engine's sockets: only its user can enter it, and it goes with the engine."""

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from warmfleet_worker.vllm_engine.arguments import UnfitSettingsError

_PREFIX: Final = "warmfleet-vllm-"
_MAX_PARENT_BYTES: Final = 107 - len(f"/{uuid.UUID(int=0)}")
"""What a socket's path leaves beside the longest name in it: vLLM's own sockets lie there, too."""
_MAX_REMOVED: Final = 1000
"""Folders of engines before that one start removes."""


@contextmanager
def socket_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder in `parent`, by default that for temporary files; gone afterwards.

    A killed engine leaves its folder: the next start removes those that no process has locked, as the engine
    does with its own. Folders of other users, and links, are left alone.

    Raises:
        UnfitSettingsError: the path of the folder for temporary files is too long for a socket.

    with socket_folder() as folder:
        ...  # bind sockets in it
    """
    parent = parent or _temporary_folder()
    _remove_abandoned(parent)
    folder, lock = _locked_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _temporary_folder() -> Path:
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) > _MAX_PARENT_BYTES:
        raise UnfitSettingsError(
            "vLLM's sockets lie in the folder for temporary files, and the path of a socket is short: set "
            f"$TMPDIR to one of at most {_MAX_PARENT_BYTES} bytes; it is {folder}"
        )
    return Path(folder)


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
