"""What the machine does beside a benchmark: what others take, the benchmark's processes wait for."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.measured_router import Usage
from warmfleet_runtime.processors import busy_cpu_seconds


def with_children(pid: int) -> Iterator[int]:
    """A process, and those that it and its children have started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from with_children(int(child))


class OtherProcesses:
    """All processes of this machine but those of the benchmark, and what its hypervisor kept from it."""

    def __init__(self, own_pids: Sequence[int]) -> None:
        self._own_pids = own_pids

    @property
    def cpu_seconds(self) -> float:
        """Used so far."""
        return busy_cpu_seconds() - sum(Usage.of(pid).cpu_seconds for pid in self._own_pids)
