"""The processors of this machine, and how busy they are; from /proc."""

import os
import resource
import time
from pathlib import Path
from typing import Final

VECTOR_FLAGS: Final = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve", "bf16",
)  # fmt: skip

IDLE_BUSY_RATIO: Final = 0.10
"""A machine busier than this is not idle: what is measured on it does not count as its speed."""
CPU_INFO: Final = Path("/proc/cpuinfo")
STAT: Final = Path("/proc/stat")


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def cpu_model(cpu_information: str) -> str:
    """The "model name" of /proc/cpuinfo, or "" where it has none."""
    return _field(cpu_information, "model name")


def isa_flags(cpu_information: str) -> tuple[str, ...]:
    """The vector extensions in /proc/cpuinfo that matter to matrix kernels."""
    flags = (_field(cpu_information, "flags") or _field(cpu_information, "Features")).split()
    return tuple(flag for flag in VECTOR_FLAGS if flag in flags)


def busy_ratio(before: str, after: str) -> float:
    """Share of CPU time between two readings of /proc/stat that was neither idle nor waiting for disk."""
    idle_before, total_before = cpu_times(before)
    idle_after, total_after = cpu_times(after)
    elapsed = total_after - total_before
    return 1 - (idle_after - idle_before) / elapsed if elapsed else 0.0


def cpu_times(stat: str) -> tuple[int, int]:
    """Idle and total jiffies of the first line of /proc/stat. Guest time is already inside user time."""
    times = [int(field) for field in stat.split("\n", 1)[0].split()[1:9]]
    return times[3] + times[4], sum(times)


def busy_cpu_seconds() -> float:
    """CPU time since the machine started that was neither idle nor waiting for disk, over all cores."""
    idle, total = cpu_times(STAT.read_text(encoding="utf-8"))
    return (total - idle) / os.sysconf("SC_CLK_TCK")


class CpuUsage:
    """How much of the cores other processes used since this object was made.

    usage = CpuUsage()
    ...  # work, by this process and by children that have ended when it is asked
    usage.others_ratio()
    """

    def __init__(self) -> None:
        self._seconds = time.monotonic()
        self._busy_seconds, self._own_seconds = busy_cpu_seconds(), _own_cpu_seconds()

    def others_ratio(self) -> float:
        """Share of all cores' time, 0..1."""
        elapsed = time.monotonic() - self._seconds
        others = busy_cpu_seconds() - self._busy_seconds - (_own_cpu_seconds() - self._own_seconds)
        return max(others, 0.0) / (elapsed * (os.cpu_count() or 1)) if elapsed > 0 else 0.0


def _own_cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _field(text: str, name: str) -> str:
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator and key.strip() == name:
            return value.strip()
    return ""
