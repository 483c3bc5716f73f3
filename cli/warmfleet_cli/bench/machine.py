"""The hardware that figures are measured on, and whether it is idle."""

import os
import platform
import time
from dataclasses import dataclass

from warmfleet_runtime.processors import (
    CPU_INFO,
    IDLE_BUSY_RATIO,
    STAT,
    busy_ratio,
    cpu_model,
    isa_flags,
    usable_cores,
)


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

    cpu_information = CPU_INFO.read_text(encoding="utf-8")
    return Machine(
        cpu_model=cpu_model(cpu_information) or platform.processor() or platform.machine(),
        cores=usable_cores(),
        isa_flags=isa_flags(cpu_information),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        torch_version=str(torch.__version__),
        torch_isa=torch.backends.cpu.get_cpu_capability(),
    )


def measure_busy_ratio(seconds: float = 2.0) -> float:
    """How busy all cores were over the next `seconds`; blocks meanwhile."""
    before = STAT.read_text(encoding="utf-8")
    time.sleep(seconds)
    return busy_ratio(before, STAT.read_text(encoding="utf-8"))


def idle_remark(busy: float) -> str:
    """A sentence for the report: whether the machine was idle when the benchmark started."""
    if busy <= IDLE_BUSY_RATIO:
        return f"Machine idle at the start ({busy:.0%} busy)."
    return f"Machine NOT idle at the start: {busy:.0%} of its cores were busy. Distrust the times."


def others_remark(ratio: float) -> str:
    """A sentence for the report: whether other processes computed during the benchmark."""
    if ratio <= IDLE_BUSY_RATIO:
        return f"Other processes used {ratio:.0%} of the cores during the run."
    return (
        f"Machine NOT idle during the run: other processes used {ratio:.0%} of its cores. Distrust the times."
    )
