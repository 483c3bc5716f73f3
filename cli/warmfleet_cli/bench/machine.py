"""The hardware that figures are measured on, and whether it is idle."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

IDLE_BUSY_RATIO: Final = 0.10
"""A machine busier than this before a benchmark starts is not idle."""

_RELEVANT_FLAGS: Final = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve", "bf16",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware as this process sees it."""

    cpu_model: str
    cores: int
    """Cores this process may run on."""
    isa_flags: tuple[str, ...]
    memory_bytes: int
    torch_version: str
    torch_isa: str
    """The instruction set that torch's own kernels dispatch to."""

    def line(self, dtype: str) -> str:
        """One line for the report."""
        flags = " ".join(self.isa_flags) or "no vector flags known"
        return (
            f"{self.cpu_model}, {self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB; {flags}; "
            f"torch {self.torch_version} ({self.torch_isa}), {dtype}"
        )


def this_machine() -> Machine:
    """The hardware, from /proc and torch; imports torch."""
    import torch  # noqa: PLC0415 - seconds to import; `warmfleet --help` must not wait for it

    cpu_information = _read("/proc/cpuinfo")
    return Machine(
        cpu_model=cpu_model(cpu_information) or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        isa_flags=isa_flags(cpu_information),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        torch_version=str(torch.__version__),
        torch_isa=torch.backends.cpu.get_cpu_capability(),
    )


def cpu_model(cpu_information: str) -> str:
    """The "model name" of /proc/cpuinfo, or "" where it has none."""
    return _field(cpu_information, "model name")


def isa_flags(cpu_information: str) -> tuple[str, ...]:
    """The vector extensions in /proc/cpuinfo that matter to matrix kernels."""
    flags = (_field(cpu_information, "flags") or _field(cpu_information, "Features")).split()
    return tuple(flag for flag in _RELEVANT_FLAGS if flag in flags)


def busy_ratio(before: str, after: str) -> float:
    """Share of CPU time between two readings of /proc/stat that was neither idle nor waiting for disk."""
    idle_before, total_before = _cpu_times(before)
    idle_after, total_after = _cpu_times(after)
    elapsed = total_after - total_before
    return 1 - (idle_after - idle_before) / elapsed if elapsed else 0.0


def measure_busy_ratio(seconds: float = 2.0) -> float:
    """How busy all cores were over the next `seconds`; blocks meanwhile."""
    before = _read("/proc/stat")
    time.sleep(seconds)
    return busy_ratio(before, _read("/proc/stat"))


def busy_cpu_seconds() -> float:
    """CPU time since the machine started that was neither idle nor waiting for disk, over all cores."""
    idle, total = _cpu_times(_read("/proc/stat"))
    return (total - idle) / os.sysconf("SC_CLK_TCK")


def idle_remark(busy: float) -> str:
    """A sentence for the report: whether the machine was idle when the benchmark started."""
    if busy <= IDLE_BUSY_RATIO:
        return f"Machine idle at the start ({busy:.0%} busy)."
    return f"Machine NOT idle at the start: {busy:.0%} of its cores were busy. Distrust the times."


def _cpu_times(stat: str) -> tuple[int, int]:
    """Idle and total jiffies of the first line of /proc/stat. Guest time is already inside user time."""
    times = [int(field) for field in stat.split("\n", 1)[0].split()[1:9]]
    return times[3] + times[4], sum(times)


def _field(text: str, name: str) -> str:
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator and key.strip() == name:
            return value.strip()
    return ""


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
