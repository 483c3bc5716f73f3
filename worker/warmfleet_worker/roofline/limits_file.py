"""Where measured limits are kept, and the lock that keeps two measurements of a machine apart."""

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_runtime.files import write_file_atomically
from warmfleet_runtime.home import warmfleet_home
from warmfleet_runtime.processors import CPU_INFO, cpu_model, isa_flags, usable_cores
from warmfleet_worker.engine.roofline import MachineLimits

MAX_FILE_BYTES: Final = 4096
_LOCK_NAME: Final = "warmfleet-machine-limits.lock"


def limits_path() -> Path | None:
    """The file for processors like these; None without a home directory, where nothing can be kept."""
    cpu_information = ""
    with suppress(OSError):
        cpu_information = CPU_INFO.read_text(encoding="utf-8")
    try:
        return warmfleet_home() / limits_name(cpu_information, usable_cores())
    except RuntimeError:
        return None


def limits_name(cpu_information: str, cores: int) -> str:
    """One name per CPU model, vector extensions and number of cores."""
    key = "\0".join((cpu_model(cpu_information), *isa_flags(cpu_information), str(cores)))
    return f"machine-limits-{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}.json"


def read_limits(path: Path | None) -> MachineLimits | None:
    """Limits that were measured before; None if there are none, or the file is damaged."""
    if path is None:
        return None
    with suppress(OSError, *UNDECODABLE):
        with path.open("rb") as file:
            limits = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=MachineLimits)
        if limits.read_bytes_per_second > 0:
            return limits
    return None


def write_limits(path: Path | None, limits: MachineLimits) -> None:
    """Keep `limits`; where nothing can be written, such as on a read-only root, they are measured again."""
    if path is None:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file_atomically(path, msgspec.json.encode(limits))


@contextmanager
def machine_lock(folder: Path | None = None, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of all measurements on this machine; False if another process has it.

    It is a file in the temporary folder, which any user may open; a process that ends unlocks it.
    """
    path = (folder or Path(tempfile.gettempdir())) / _LOCK_NAME
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            # Without O_CREAT: the kernel refuses it for another user's file in such a folder.
            descriptor = os.open(path, os.O_RDONLY | flags)
        except FileNotFoundError:
            descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | flags, 0o644)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
