"""Writing files atomically and durably."""

import os
import tempfile
from pathlib import Path


def write_file_atomically(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = False) -> None:
    """Replace the file at `path`, or make it: a reader sees the old content or the new, never a part.

        write_file_atomically(home / "state.json", msgspec.json.encode(state))

    Args:
        path: the file; its folder has to exist. A symbolic link is replaced, not followed.
        content: all of the new file.
        mode: permissions of the new file. By default only its owner may read it.
        durable: whether the new file is on the disk, and not only in its cache, before this returns.

    Raises:
        OSError: it cannot be written. The old file is as before, and nothing is left beside it.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)  # or a full disk would stay full
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of `folder` to the disk: what was created, renamed or removed in it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
