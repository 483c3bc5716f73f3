"""Downloads one file from the hub: resumes, limits its size to the listed one, and checks its digest."""

import hashlib
import os
from pathlib import Path
from typing import Final

from warmfleet_worker.model_store.fetch.errors import FetchError
from warmfleet_worker.model_store.fetch.hub_client import HubClient, TransientError, retried
from warmfleet_worker.model_store.fetch.progress import Progress
from warmfleet_worker.model_store.fetch.selection import HubFile

_READ_BYTES: Final = 2**20
PARTIAL_SUFFIX: Final = ".partial"


def download_file(client: HubClient, file: HubFile, folder: Path, progress: Progress) -> None:
    """Download `file` into `folder`; a complete file is not fetched again.

    Raises:
        FetchError: the hub failed, or the content differs from the listing.
        OSError: it could not be written.
    """
    target = folder / file.name
    if target.is_file() and target.stat().st_size == file.size_bytes:
        return
    partial = folder / f"{file.name}{PARTIAL_SUFFIX}"
    for last in (False, True):
        while _size_bytes(partial) != file.size_bytes or not partial.exists():
            _resume(client, file, partial, progress)
        progress.report("verifying", file=file.name)
        if _matches_listing(partial, file):
            partial.rename(target)
            return
        # A partial file may be damaged or from another writer: try once from the start.
        partial.unlink()
        if last:
            raise FetchError(f"{file.name} does not have the digest that the hub lists: not used")


def _resume(client: HubClient, file: HubFile, partial: Path, progress: Progress) -> None:
    """Fetch until the file is complete, or until the attempts in a row received nothing."""
    before = _size_bytes(partial)
    try:
        retried(lambda: _append(client, file, partial, progress), progress)
    except TransientError:
        if _size_bytes(partial) <= before:
            raise


def _append(client: HubClient, file: HubFile, partial: Path, progress: Progress) -> None:
    have = _size_bytes(partial)
    if have > file.size_bytes:
        partial.unlink()
        have = 0
    if have == file.size_bytes and partial.exists():
        return
    with client.content(file, have) as (begins, pieces), partial.open("ab") as out:
        out.truncate(begins)
        done = begins
        for piece in pieces:
            done += len(piece)
            if done > file.size_bytes:
                raise FetchError(f"{file.name} is longer than the {file.size_bytes} bytes that the hub lists")
            out.write(piece)
            progress.report("downloading", file=file.name, done_bytes=done, total_bytes=file.size_bytes)
        out.flush()
        os.fsync(out.fileno())
    if done < file.size_bytes:
        raise TransientError(f"{file.name} ended after {done} of {file.size_bytes} bytes")


def _matches_listing(path: Path, file: HubFile) -> bool:
    sha256 = hashlib.sha256()
    # git's own name of a blob; it guards against damage, not against an attacker
    git_sha1 = hashlib.sha1(f"blob {file.size_bytes}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        while piece := content.read(_READ_BYTES):
            if file.sha256:
                sha256.update(piece)
            elif file.git_sha1:
                git_sha1.update(piece)
    if file.sha256:
        return sha256.hexdigest() == file.sha256
    return not file.git_sha1 or git_sha1.hexdigest() == file.git_sha1


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
