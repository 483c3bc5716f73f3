"""Measures the limits of a GPU: how fast it reads its memory, and multiplies matrices by torch."""

from collections.abc import Callable
from typing import Final

import torch

from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.roofline.measurement import MAX_BUFFER_BYTES, MIN_BUFFER_BYTES, NotMeasurable

ATTEMPTS: Final = 20
"""Of each; the first ones choose kernels and raise clocks."""
PRODUCT_ROWS: Final = 8192
_PRODUCT_BYTES: Final = 3 * PRODUCT_ROWS**2 * torch.float32.itemsize


@torch.inference_mode()
def measure_gpu() -> MachineLimits | None:
    """Measure the GPU on which a worker would compute, if there is one; a second, and the start of CUDA.

    Memory is read by sums over numbers in float32: larger than any cache, and nothing is written.

    Raises:
        NotMeasurable: too little of its memory is free.
    """
    if not torch.cuda.is_available():
        return None
    free_bytes, _ = torch.cuda.mem_get_info()
    buffer_bytes = min(free_bytes // 2, MAX_BUFFER_BYTES)
    if buffer_bytes < max(MIN_BUFFER_BYTES, _PRODUCT_BYTES):
        raise NotMeasurable(f"{free_bytes >> 20} MiB of the GPU's memory are free: too little for products")
    buffer = torch.zeros(buffer_bytes // torch.float32.itemsize, dtype=torch.float32, device="cuda")
    read_seconds = _least_seconds(buffer.sum)
    del buffer
    torch.cuda.empty_cache()
    return MachineLimits(
        read_bytes_per_second=buffer_bytes / read_seconds,
        read_threads=0,
        buffer_bytes=buffer_bytes,
        bfloat16_flops_per_second=_product_rate(torch.bfloat16),
        float32_flops_per_second=_product_rate(torch.float32),
        gpu=torch.cuda.get_device_name(),
    )


def _product_rate(dtype: torch.dtype) -> float:
    """Products and sums per second. Of random numbers: a GPU multiplies zeros faster."""
    matrix = torch.randn(PRODUCT_ROWS, PRODUCT_ROWS, device="cuda").to(dtype)
    product = torch.empty_like(matrix)
    return 2 * PRODUCT_ROWS**3 / _least_seconds(lambda: torch.mm(matrix, matrix, out=product))


def _least_seconds(compute: Callable[[], object]) -> float:
    """By the device's own clock: what the interpreter takes to start a kernel does not count."""
    least_milliseconds = float("inf")
    for _ in range(ATTEMPTS):
        begin, end = _timer(), _timer()
        begin.record()
        compute()
        end.record()
        end.synchronize()
        least_milliseconds = min(least_milliseconds, begin.elapsed_time(end))
    return least_milliseconds / 1000


def _timer() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
