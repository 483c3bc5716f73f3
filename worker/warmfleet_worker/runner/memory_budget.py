"""What an engine holds in memory against what it may use: refuses a start, or sizes the KV arena."""

from dataclasses import dataclass

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_contracts.resources.engine_memory import EngineMemory

_GIB = 2**30
_MIB = 2**20


class NotEnoughMemory(WarmfleetError):  # noqa: N818 - named after what is wrong
    """The engine would need more memory than it may use, or than its device has free."""


def memory_refusal(memory: EngineMemory, process_bytes: int, limit_bytes: int) -> str:
    """Why an engine cannot start with `limit_bytes` of memory; "" if it can.

    Args:
        memory: what the engine will hold.
        process_bytes: held before the model is loaded, by the interpreter and its libraries.
        limit_bytes: what this process may use.
    """
    needed_bytes = process_bytes + memory.total_bytes
    if needed_bytes <= limit_bytes:
        return ""
    return (
        f"the engine needs {_size(needed_bytes)} of memory and may use {_size(limit_bytes)}: "
        f"weights {_size(memory.weights_bytes)}, KV cache {_size(memory.arena_bytes)}, "
        f"attention workspace {_size(memory.workspace_bytes)}, the process itself {_size(process_bytes)}; "
        "use a smaller KV cache, a shorter model length or a smaller model, or raise the memory limit"
    )


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device's memory as it is at one time."""

    total_bytes: int
    free_bytes: int


def device_refusal(memory: EngineMemory, device: DeviceMemory) -> str:
    """Why an engine cannot start on a device, with the device as it is before the weights; "" if it can."""
    if memory.total_bytes <= device.free_bytes:
        return ""
    return (
        f"the engine needs {_size(memory.total_bytes)} of the device's memory, and "
        f"{_size(device.free_bytes)} of {_size(device.total_bytes)} are free: "
        f"weights {_size(memory.weights_bytes)}, KV cache {_size(memory.arena_bytes)}, "
        f"attention workspace {_size(memory.workspace_bytes)}; "
        "use a smaller KV cache, a shorter model length, a smaller model or a larger device"
    )


def share_of_device_bytes(percent: int, memory: DeviceMemory, workspace_bytes: int = 0) -> int:
    """Bytes for the arena so that everything on the device takes `percent` of it; 0 if it takes more already.

    `memory` is that of the device with the weights on it.
    Memory of other processes counts as taken, and so does the workspace of attention, which is allocated
    after the arena. The rest is for activations.
    """
    taken_bytes = memory.total_bytes - memory.free_bytes + workspace_bytes
    return max(0, memory.total_bytes * percent // 100 - taken_bytes)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f} GiB" if size_bytes >= _GIB else f"{size_bytes / _MIB:.1f} MiB"
