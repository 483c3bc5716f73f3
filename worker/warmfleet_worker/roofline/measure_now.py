"""Measures at once the limits of what computes on this machine: a GPU where there is one, else processors."""

from contextlib import ExitStack

from warmfleet_runtime.processors import IDLE_BUSY_RATIO, CpuUsage, usable_cores
from warmfleet_worker.engine.roofline import MachineLimits
from warmfleet_worker.pytorch import is_torch_installed
from warmfleet_worker.roofline.limits_file import limits_path, machine_lock, read_limits, write_limits
from warmfleet_worker.roofline.measurement import (
    FILL_SECONDS,
    NO_TORCH,
    NeverMeasurable,
    NotMeasurable,
    measure,
)
from warmfleet_worker.roofline.memory_reader import MemoryReader, free_buffer_bytes


def measure_now(*, wait: bool = True, fill_seconds: float = FILL_SECONDS) -> tuple[MachineLimits, float]:
    """The limits, and the share of the cores that other processes used meanwhile; about two seconds.

    `fill_seconds`: for the memory that is read; a virtual machine takes longer for what it never had before.

    With `wait` after any other process that measures now. The best limits of processors are kept, if the
    machine was idle; those of a GPU are not.

    Raises:
        NeverMeasurable: torch is not installed.
        NotMeasurable: too little memory is free; or another process measures, and without `wait`.
    """
    if not is_torch_installed():
        raise NeverMeasurable(NO_TORCH)
    from warmfleet_worker.roofline.gpu import measure_gpu  # noqa: PLC0415 - only where there is torch
    from warmfleet_worker.roofline.products import Products  # noqa: PLC0415 - the same

    cores = usable_cores()
    with ExitStack() as held:
        # With `wait` it is measured also where there can be no lock, as in a folder that others own.
        if not held.enter_context(machine_lock(wait=wait)) and not wait:
            raise NotMeasurable("another process measures them now")
        usage = CpuUsage()
        if gpu_limits := measure_gpu():
            return gpu_limits, usage.others_ratio()
        reader = held.enter_context(MemoryReader(free_buffer_bytes(), cores=cores))
        limits = measure(reader, Products(cores), cores, fill_seconds=fill_seconds)
        others_ratio = usage.others_ratio()
    if others_ratio <= IDLE_BUSY_RATIO:
        path = limits_path()
        known = read_limits(path)
        write_limits(path, limits if known is None else limits.best(known))
    return limits, others_ratio
