"""Whether there is a GPU. Found without torch, whose import takes longer than the start of a small model."""

from ctypes import CDLL
from pathlib import Path
from typing import Final

from warmfleet_runtime.memory import importing
from warmfleet_worker.pytorch import is_torch_installed

_NVIDIA_DRIVER: Final = "libcuda.so.1"
_AMD_DRIVER: Final = Path("/dev/kfd")


def has_gpu() -> bool:
    """Whether torch computes on a GPU here; it is asked only where there is a GPU's driver.

    Nothing computes on a GPU without torch, nor with a torch that has no CUDA.
    """
    if not has_driver() or not is_torch_installed():
        return False
    with importing():
        import torch  # noqa: PLC0415

    return torch.cuda.is_available()


def free_gpu_bytes() -> int:
    """Memory of the GPU that no process holds; only where there is one."""
    import torch  # noqa: PLC0415

    return int(torch.cuda.mem_get_info()[0])


def has_driver() -> bool:
    """Whether there is what every torch needs for a GPU."""
    if _AMD_DRIVER.exists():
        return True
    try:
        CDLL(_NVIDIA_DRIVER)
    except OSError:
        return False
    return True
