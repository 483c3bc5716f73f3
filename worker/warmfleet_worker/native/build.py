"""Compiles the native step: once per machine and version of its sources, in a few seconds.

The library is not tied to the machine that compiled it: each level is a file with its own flags, chosen
when the engine starts. An image, whose root is read-only, has it compiled: beside this module, in the same
layer, or, where the code is a checkout, in the warmfleet home that the image names.
"""

import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_contracts.names import IMAGE_HOME_VARIABLE
from warmfleet_runtime.home import warmfleet_home

SOURCES: Final = Path(__file__).with_name("csrc")
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
COMPILE_SECONDS: Final = 300.0
"""A compiler that takes longer than this is not going to end."""

_COMMON: Final = (
    "-std=gnu11",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-fast-math",
    "-fPIC",
)
_AVX2: Final = ("-mavx2", "-mfma")
_AVX512: Final = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_BASE: Final = ("-msse2",)
COMPILED: Final = {
    **dict.fromkeys(
        (
            *("attention.c", "engine.c", "levels.c", "memory.c"),
            *("pool.c", "step.c", "stepper.c", "weights.c"),
        ),
        _BASE,
    ),
    **dict.fromkeys(("levels/avx2_bf16.c", "levels/avx2_f32.c", "levels/avx2_rows.c"), _AVX2),
    **dict.fromkeys(("levels/avx512_bf16.c", "levels/avx512_f32.c", "levels/avx512_rows.c"), _AVX512),
    "levels/avx2_int8.c": (*_AVX2, "-mf16c"),
    "levels/avx512_int8.c": _AVX512,
    "levels/avx512_bf16_units.c": (*_AVX512, "-mavx512bf16"),
    "levels/amx_bf16.c": (*_AVX512, "-mavx512bf16"),
    "levels/avx512_int8_units.c": (*_AVX512, "-mavx512vnni"),
}
"""Flags of each file that is compiled, by its path in `SOURCES`."""


class NativeStepUnavailable(WarmfleetError):  # noqa: N818 - named after what is wrong
    """The native step cannot run here; the text states why and what would mend it."""


def source_hash() -> str:
    """Identifies the sources and how they are compiled."""
    digest = hashlib.sha256(repr((_COMMON, sorted(COMPILED.items()))).encode())
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def library_path() -> Path:
    """The compiled library: the image's, else the one in the cache, compiled if need be.

    Raises:
        NativeStepUnavailable: There is none and it cannot be compiled, or another user may have put it there.
    """
    if platform.machine() not in {"x86_64", "AMD64"}:
        raise NativeStepUnavailable(f"the native step is for x86-64, and this is {platform.machine()}")
    # Users who may write in an image may write this module: unlike of a cache, the owner does not matter.
    image_home = os.environ.get(IMAGE_HOME_VARIABLE)
    for library in (library_beside(), *([library_in(Path(image_home))] if image_home else [])):
        with suppress(OSError):
            if is_whole(library):
                return library
    try:
        cached = library_in(warmfleet_home())
        cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_own(cached.parent):
            raise NativeStepUnavailable(f"{cached.parent} belongs to another user, or others may write it")
        # What others may have written is not looked at: it is compiled again, over it.
        if not (is_whole(cached) and _is_own(cached)):
            compile_library(cached)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        raise NativeStepUnavailable(f"the native step's cache cannot be used: {error}") from error
    return cached


def is_in_cache(library: Path) -> bool:
    """Whether it is this user's, and not an image's: it may be compiled again."""
    with suppress(RuntimeError):  # a user without a home
        return library == library_in(warmfleet_home())
    return False


def compiled_in(home: Path) -> Path:
    """The library in a warmfleet home, of any owner; compiled if need be.

    Raises:
        NativeStepUnavailable: There is none and it cannot be compiled.
    """
    library = library_in(home)
    if not is_whole(library):
        compile_library(library)
    return library


def library_in(home: Path) -> Path:
    """Where a warmfleet home has the library of these sources, if it has."""
    return home / "native" / _library_name()


def library_beside() -> Path:
    """Where an image has it: it is in the layer of the code that it belongs to."""
    return SOURCES.parent / _library_name()


def _library_name() -> str:
    return f"libwarmfleet-step-{source_hash()}.so"


def is_whole(library: Path) -> bool:
    """Whether a file ends with the digest of what is before it: loading a part of a library is a SIGBUS."""
    if not library.is_file():
        return False
    content = library.read_bytes()
    return content[-_DIGEST_BYTES:] == hashlib.sha256(content[:-_DIGEST_BYTES]).digest()


def _is_own(path: Path) -> bool:
    """Whether only this user, or root, can have written it."""
    status = path.lstat()
    writable_by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_link = stat.S_ISLNK(status.st_mode)
    return not is_link and not writable_by_others and status.st_uid in {os.geteuid(), 0}


def compile_library(target: Path, command: Sequence[str] | None = None) -> None:
    """Compile into `target`, which appears whole or not at all: two processes may compile at once.

    Raises:
        NativeStepUnavailable: No compiler, it failed, or `target` cannot be written.
    """
    command = tuple(command) if command else compiler()
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="compiling-") as folder:
            build = Path(folder)
            with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
                objects = list(threads.map(lambda name: _object(command, name, build), COMPILED))
            library = build / target.name
            _run([*command, "-shared", "-o", str(library), *map(str, objects), "-lpthread", "-lm"])
            _append_digest(library)
            library.chmod(0o755)  # also with another umask: what a group may write is not loaded
            library.replace(target)
    except OSError as error:
        raise NativeStepUnavailable(
            f"the native step cannot be compiled into {target.parent}: {error}"
        ) from error


def _append_digest(library: Path) -> None:
    """End a library with its digest, on disk before it gets its name. ELF ignores what follows its end."""
    with library.open("r+b") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())


def compiler() -> tuple[str, ...]:
    """`$CC`, else the first of cc, gcc and clang."""
    try:
        if configured := shlex.split(os.environ.get("CC", "")):
            return tuple(configured)
    except ValueError as error:
        raise NativeStepUnavailable(f"$CC cannot be read: {error}") from error
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return (found,)
    raise NativeStepUnavailable(
        "the native step needs a C compiler (on Debian: apt-get install gcc libc6-dev)"
    )


def _object(compiler: tuple[str, ...], name: str, folder: Path) -> Path:
    target = folder / f"{name.replace('/', '-')}.o"
    _run([*compiler, *_COMMON, *COMPILED[name], "-c", str(SOURCES / name), "-o", str(target)])
    return target


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - the user's compiler over our own sources
            command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NativeStepUnavailable(f"{command[0]} took more than {COMPILE_SECONDS:g} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        reasons = [line for line in lines if "error" in line.lower()] or lines
        raise NativeStepUnavailable(
            f"{command[0]} failed: {reasons[0] if reasons else f'exit status {done.returncode}'}"
        )
