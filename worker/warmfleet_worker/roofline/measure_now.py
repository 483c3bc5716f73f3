"""Measures the limits of this machine at once."""

import msgspec

from warmfleet_runtime.processors import usable_cores
from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.roofline.limits_file import limits_path, machine_lock, read_limits, write_limits
from warmfleet_worker.roofline.measurement import measurement
from warmfleet_worker.roofline.memory_reader import MemoryReader, free_buffer_bytes
from warmfleet_worker.roofline.products import Products


def measure_now() -> MachineLimits:
    """Measure, after any other process that measures now, and keep the best; about two seconds.

    Raises:
        NotMeasurable: too little memory is free.
    """
    cores, path = usable_cores(), limits_path()
    with machine_lock(wait=True), MemoryReader(free_buffer_bytes(), cores=cores) as reader:
        slices = measurement(reader, Products(cores), cores)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                limits: MachineLimits = end.value
                write_limits(path, best_of(limits, read_limits(path)))
                return limits


def best_of(limits: MachineLimits, before: MachineLimits | None) -> MachineLimits:
    """The higher of each limit: what a machine has reached, it can reach."""
    if before is None:
        return limits
    faster = max(limits, before, key=lambda measured: measured.read_bytes_per_second)
    return msgspec.structs.replace(
        faster,
        bfloat16_flops_per_second=max(limits.bfloat16_flops_per_second, before.bfloat16_flops_per_second),
        float32_flops_per_second=max(limits.float32_flops_per_second, before.float32_flops_per_second),
    )
