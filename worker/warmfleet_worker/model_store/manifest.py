"""The manifest of a model folder: its files with sizes and digests.

`warmfleet-manifest.json` is written last when a model is fetched. A folder without one (a plain Hugging
Face download) is described from what it holds; nothing is written into it.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Final

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import ModelError

MANIFEST_NAME: Final = "warmfleet-manifest.json"
MANIFEST_VERSION: Final = 1

_MODEL_FILE_SUFFIXES: Final = frozenset({".json", ".jinja", ".model", ".safetensors", ".txt"})
"""Files that a loader may read. Pickles (`.bin`, `.pt`) and code are never read, so they are left out."""

_READ_BYTES: Final = 1 << 24
"""Each read takes Python's lock twice: beside a thread that holds it small ones mostly wait."""


class FileDigest(msgspec.Struct, frozen=True):
    """One file's SHA-256 in hex and its size."""

    sha256: str
    bytes: int


class ModelManifest(msgspec.Struct, frozen=True):
    """Files and digests of a model folder. `model_digest` is hex."""

    version: int
    files: dict[str, FileDigest]
    model_digest: str
    source: str | None = None
    """Source of a catalog model, by which a newer catalog recognises an older conversion."""

    @property
    def total_bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


def model_digest(files: dict[str, FileDigest]) -> str:
    """SHA-256 over the sorted SHA-256 of the files, in hex: the same wherever the files came from."""
    digests = sorted(bytes.fromhex(file.sha256) for file in files.values())
    return hashlib.sha256(b"".join(digests)).hexdigest()


def describe_model_folder(path: Path, *, source: str | None = None) -> ModelManifest:
    """Digest every file a loader may read; raises ModelError if there is no model in `path`."""
    files = {name: _digest_file(path / name) for name in sorted(_model_file_names(path))}
    if "config.json" not in files:
        raise ModelError("config.json is missing from the model folder")
    if not any(name.endswith(".safetensors") for name in files):
        raise ModelError("the model folder holds no .safetensors file; other weight formats are not read")
    return ModelManifest(
        version=MANIFEST_VERSION, files=files, model_digest=model_digest(files), source=source
    )


def read_manifest(path: Path) -> ModelManifest | None:
    """The folder's manifest as written, None if it has none; raises ModelError if it is damaged.

    Digests are not compared here: see `verify_model_folder`.
    """
    try:
        encoded = (path / MANIFEST_NAME).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"{MANIFEST_NAME} cannot be read: {error.strerror}") from error
    try:
        manifest = msgspec.json.decode(encoded, type=ModelManifest)
        digest = model_digest(manifest.files)
    except (ValueError, *UNDECODABLE) as error:
        raise ModelError(f"{MANIFEST_NAME} is damaged: {error}") from error
    if manifest.version != MANIFEST_VERSION:
        raise ModelError(f"{MANIFEST_NAME} has version {manifest.version}, expected {MANIFEST_VERSION}")
    if digest != manifest.model_digest:
        raise ModelError(f"{MANIFEST_NAME} is damaged: model_digest does not follow from its files")
    for name in manifest.files:
        if name != Path(name).name or name in {"", ".", "..", MANIFEST_NAME}:
            raise ModelError(f"{MANIFEST_NAME} is damaged: {name!r} is not a file of the folder")
    return manifest


def check_file_sizes(path: Path, manifest: ModelManifest) -> None:
    """Check that every file exists with its size; raises ModelError naming the first that does not."""
    for name, expected in manifest.files.items():
        try:
            size_bytes = (path / name).stat().st_size
        except OSError as error:
            raise ModelError(f"{name} is missing from the model folder") from error
        if size_bytes != expected.bytes:
            raise ModelError(f"{name} has {size_bytes} bytes, expected {expected.bytes}: it is damaged")
    for name in sorted(_model_file_names(path) - manifest.files.keys()):
        raise ModelError(f"{name} is in the model folder but not in {MANIFEST_NAME}")


def verify_model_folder(path: Path) -> ModelManifest:
    """Check every file's size and SHA-256 against the manifest; raises ModelError naming the file.

    A folder without a manifest gets one computed, not written.
    """
    try:
        exists = path.is_dir()
    except OSError as error:
        raise _unreadable(path, error) from error
    if not exists:
        raise ModelError(f"there is no model folder named {path.name!r}")
    manifest = read_manifest(path)
    if manifest is None:
        return describe_model_folder(path)
    check_file_sizes(path, manifest)
    for name, expected in manifest.files.items():
        if _digest_file(path / name).sha256 != expected.sha256:
            raise ModelError(f"{name} does not have the SHA-256 in {MANIFEST_NAME}: it is damaged")
    return manifest


def write_manifest(path: Path, manifest: ModelManifest) -> None:
    """Write and fsync the manifest: the last file of a folder that is being filled."""
    text = json.dumps(msgspec.to_builtins(manifest), indent=2) + "\n"
    with (path / MANIFEST_NAME).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _model_file_names(path: Path) -> set[str]:
    try:
        return {
            entry.name
            for entry in path.iterdir()
            if entry.suffix in _MODEL_FILE_SUFFIXES
            and not entry.name.startswith(".")
            and entry.name != MANIFEST_NAME
            and entry.is_file()
        }
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ModelError:
    return ModelError(f"the model folder {path.name!r} cannot be read: {error.strerror}")


def _digest_file(path: Path) -> FileDigest:
    digest = hashlib.sha256()
    size_bytes = 0
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_READ_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {error.strerror}") from error
    return FileDigest(sha256=digest.hexdigest(), bytes=size_bytes)
