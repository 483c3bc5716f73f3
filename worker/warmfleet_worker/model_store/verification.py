"""Starts with the recorded digests of a model folder, and verifies its content in the background.

Hashing 16 GB takes tens of seconds. A start relies on sizes and modification times instead, as git's index
does, if no file changed since its digest was computed: for a manifest, which is written last, or for a
record of an earlier start. All other folders are verified before the start, and so is every folder if damage
that the background finds could not be recorded: each restart would serve the damaged weights again.
"""

import hashlib
import os
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import ModelError
from warmfleet_worker.model_store.manifest import (
    MANIFEST_NAME,
    ModelManifest,
    check_file_sizes,
    describe_model_folder,
    read_manifest,
    verify_model_folder,
)

_SETTLED_NS: Final = 2_000_000_000
"""A file that changed more recently than this may change again without a new modification time."""
_LOWEST_PRIORITY: Final = 19


class _Record(msgspec.Struct, frozen=True):
    """The manifest of a folder without one, and the state of its files when it was computed."""

    manifest: ModelManifest
    states: dict[str, tuple[int, int, int]]


def prepare_records(records: Path) -> bool:
    """Create the folder of records; False if no file can be created in it, so damage cannot be recorded."""
    try:
        records.mkdir(parents=True, exist_ok=True)
        # Permission bits show neither a read-only or full file system nor a mapped root user.
        with tempfile.NamedTemporaryFile(dir=records):
            return True
    except OSError:
        return False


def recorded_manifest(path: Path, records: Path) -> ModelManifest | None:
    """The manifest of `path` if no file changed since its digests were computed, without reading the files.

    None if that is not known: see `verify_and_record`. Rely on it only if `prepare_records` returned True.
    Raises ModelError for a damaged manifest, and for missing or additional files.
    """
    if os.path.exists(_damaged_path(path, records)):  # noqa: PTH110 - Path.exists raises without permission
        return None
    manifest = read_manifest(path)
    if manifest is not None:
        check_file_sizes(path, manifest)
        written_ns = (path / MANIFEST_NAME).stat().st_mtime_ns
        older = all((path / name).stat().st_mtime_ns < written_ns for name in manifest.files)
        return manifest if older else None
    try:
        record = msgspec.json.decode(_record_path(path, records).read_bytes(), type=_Record)
        return record.manifest if _states(path, record.manifest) == record.states else None
    except (OSError, ModelError, *UNDECODABLE):
        return None


def verify_and_record(path: Path, records: Path) -> ModelManifest:
    """Verify every file; a folder without a manifest leaves a record for the next start.

    Raises:
        ModelError: a file is missing or damaged; named.
    """
    partial = _record_path(path, records).with_suffix(f".{os.getpid()}")
    started_ns = _touched_ns(partial)
    try:
        manifest = verify_model_folder(path)
        with suppress(OSError):
            _damaged_path(path, records).unlink()
        if started_ns is not None and read_manifest(path) is None:
            states = _states(path, manifest)
            if all(changed_ns < started_ns - _SETTLED_NS for _, changed_ns, _ in states.values()):
                with suppress(OSError):
                    partial.write_bytes(msgspec.json.encode(_Record(manifest, states)))
                    partial.replace(_record_path(path, records))
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return manifest


def _touched_ns(path: Path) -> int | None:
    """Modification time of a new file at `path`; None where none can be written, as in a read-only home.

    A file system's own time is what modification times can be compared with; a wall clock may jump.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path.stat().st_mtime_ns
    except OSError:
        return None


class BackgroundVerification:
    """Verifies a model folder in a thread of the lowest priority.

    verification = BackgroundVerification(path, manifest, records)
    verification.start()
    verification.raise_failure()  # between steps
    """

    def __init__(self, path: Path, manifest: ModelManifest, records: Path) -> None:
        self._path = path
        self._damaged = _damaged_path(path, records)
        self._expected = manifest
        self._failures: list[ModelError] = []

    def start(self) -> None:
        """Begin; the process can end at any time."""
        threading.Thread(target=self._run, name="verify-model", daemon=True).start()

    def raise_failure(self) -> None:
        """Raise the ModelError that the verification has found, if any."""
        if self._failures:
            raise self._failures[0]

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere the id of a thread is not that of a process
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        self.verify()

    def verify(self) -> None:
        """Verify in the calling thread; a failure is kept for `raise_failure`."""
        try:
            self._compare()
        except ModelError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - a thread that ends without a result would pass as verified
            self._fail(ModelError(f"the model folder {self._path.name!r} cannot be verified: {error}"))

    def _compare(self) -> None:
        if read_manifest(self._path) is not None:
            verify_model_folder(self._path)
            return
        found = describe_model_folder(self._path)
        for name, expected in self._expected.files.items():
            if found.files.get(name) != expected:
                raise ModelError(f"{name} changed without a new modification time: it is damaged")

    def _fail(self, error: ModelError) -> None:
        with suppress(OSError):
            self._damaged.parent.mkdir(parents=True, exist_ok=True)
            self._damaged.touch()  # the next start verifies first
        self._failures.append(error)


def _states(path: Path, manifest: ModelManifest) -> dict[str, tuple[int, int, int]]:
    """Size, modification time in nanoseconds and inode of each file."""
    check_file_sizes(path, manifest)
    states = {}
    for name in manifest.files:
        state = (path / name).stat()
        states[name] = (state.st_size, state.st_mtime_ns, state.st_ino)
    return states


def _record_path(path: Path, records: Path) -> Path:
    return records / f"{_key(path)}.json"


def _damaged_path(path: Path, records: Path) -> Path:
    """Exists if the last background verification of the folder failed."""
    return records / f"{_key(path)}.damaged"


def _key(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
