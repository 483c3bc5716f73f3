"""Size of the KV arena as a share of the device's memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device's memory with the weights already on it."""

    total_bytes: int
    free_bytes: int


def share_of_device_bytes(percent: int, memory: DeviceMemory, workspace_bytes: int = 0) -> int:
    """Bytes for the arena so that everything on the device takes `percent` of it; 0 if it takes more already.

    Memory of other processes counts as taken, and so does the workspace of attention, which is allocated
    after the arena. The rest is for activations.
    """
    taken_bytes = memory.total_bytes - memory.free_bytes + workspace_bytes
    return max(0, memory.total_bytes * percent // 100 - taken_bytes)
