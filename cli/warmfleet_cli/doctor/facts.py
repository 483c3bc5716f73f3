"""Reads what an engine finds on this machine: files of the kernel, installed packages, folders."""

import os
import platform
import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from warmfleet_runtime.memory import available_memory_bytes, memory_limit_bytes
from warmfleet_runtime.processors import usable_cores
from warmfleet_worker.engine_program import EngineMissingError, engine_program
from warmfleet_worker.model_store.catalog import CATALOG, catalog_model_path

_COMPILERS: Final = ("cc", "gcc", "clang")
_MOST_READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What was found; an empty text is what is not there."""

    machine: str
    """Such as x86_64."""
    cpu: str
    cpu_flags: frozenset[str]
    cores: int
    """That this process may use."""
    machine_bytes: int
    limit_bytes: int
    """The machine's memory, or the least limit of the control groups."""
    available_bytes: int | None
    huge_pages: str
    """The mode of transparent huge pages: always, madvise or never."""
    compiler: str
    torch_version: str
    nvidia_devices: tuple[str, ...]
    vllm_python: str
    """The interpreter that workers with vLLM start; "" if there is none."""
    vllm_version: str
    """Of the package beside it; "" if that is unknown."""
    home: Path
    is_home_writable: bool
    free_bytes: int
    models: tuple[str, ...]
    """Of the catalog, those that were pulled."""


def read_facts(
    home: Path, environment: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> MachineFacts:
    """Look at the machine; starts nothing, and imports neither torch nor vLLM."""
    cpu_info = _read(root / "proc/cpuinfo")
    vllm_python = _vllm_python(environment)
    existing = next(folder for folder in (home, *home.parents) if folder.is_dir())
    return MachineFacts(
        machine=platform.machine(),
        cpu=_field(cpu_info, "model name"),
        cpu_flags=frozenset((_field(cpu_info, "flags") or _field(cpu_info, "Features")).split()),
        cores=usable_cores(),
        machine_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        limit_bytes=memory_limit_bytes(),
        available_bytes=available_memory_bytes(),
        huge_pages=_chosen(_read(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        compiler=_compiler(environment),
        torch_version=_version("torch"),
        nvidia_devices=tuple(_nvidia_devices(root)),
        vllm_python=vllm_python,
        vllm_version=_vllm_version(vllm_python),
        home=home,
        is_home_writable=os.access(existing, os.W_OK | os.X_OK),
        free_bytes=shutil.disk_usage(existing).free,
        models=tuple(name for name in sorted(CATALOG) if catalog_model_path(name, home)),
    )


def _read(path: Path) -> str:
    """The text of a file of the kernel; "" if there is none."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(_MOST_READ_BYTES).decode(errors="replace")
    return ""


def _field(text: str, name: str) -> str:
    """The first value of a field in lines of `name : value`."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _chosen(modes: str) -> str:
    """`madvise` of `always [madvise] never`."""
    return modes.partition("[")[2].partition("]")[0]


def _compiler(environment: Mapping[str, str]) -> str:
    """As the engine finds it: `$CC`, else the first of cc, gcc and clang."""
    configured = environment.get("CC", "")
    names = shlex.split(configured)[:1] if configured else _COMPILERS
    return next((path for name in names if (path := shutil.which(name, path=environment.get("PATH")))), "")


def _version(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    return ""


def _nvidia_devices(root: Path) -> Iterator[str]:
    """The names that the driver knows, one for each device."""
    for path in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        yield _field(_read(path), "Model") or path.parent.name


def _vllm_python(environment: Mapping[str, str]) -> str:
    try:
        return engine_program("VLLM", environment).python
    except EngineMissingError:
        return ""


def _vllm_version(python: str) -> str:
    """Of the package beside an interpreter, which is not started: vLLM takes seconds to import."""
    packages = Path(python).parent.parent.glob("lib/python*/site-packages/vllm-*.dist-info")
    found = sorted(packages) if python else ()
    return found[0].name.removeprefix("vllm-").removesuffix(".dist-info") if found else ""
