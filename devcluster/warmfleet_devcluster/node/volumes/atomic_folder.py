"""A folder whose files change all at once, as the kubelet writes Secret and ConfigMap volumes.

folder/..2026_01_31_10_00_00.1/key   one generation
folder/..data -> that generation     replaced by rename: readers see the old files or the new
folder/key -> ..data/key
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DATA: Final = "..data"


@dataclass(frozen=True, slots=True)
class VolumeFile:
    content: bytes
    mode: int = 0o644


def write_atomically(folder: Path, files: Mapping[str, VolumeFile], group: int | None) -> bool:
    """Makes the folder show exactly `files` (relative path -> file); whether anything had to change.

    With `group` (fsGroup) the files belong to that group, which may read them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    current = folder / _DATA
    if current.exists() and _holds(current, files):
        return False
    generation = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    generation.chmod(0o755)
    for name, file in files.items():
        path = generation / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode | (0o440 if group is not None else 0))
        if group is not None:
            os.chown(path, -1, group)
    old = current.resolve() if current.is_symlink() else None
    fresh = folder / "..data_tmp"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(generation.name)
    fresh.replace(current)
    tops = {name.split("/", 1)[0] for name in files}
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    for top in tops:
        link = folder / top
        if not link.is_symlink():
            link.symlink_to(f"{_DATA}/{top}")
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    return True


def _holds(generation: Path, files: Mapping[str, VolumeFile]) -> bool:
    root = generation.resolve()
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return found == {name: file.content for name, file in files.items()}
