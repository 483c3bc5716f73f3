"""Instruction-set levels of the native step, and which of them a processor runs."""

from enum import IntEnum
from typing import cast

from warmfleet_worker.settings import CpuKernels


class Level(IntEnum):
    """Values are those of `wf_level` in csrc/warmfleet_step.h, ascending: Auto takes the highest that runs.

    Where the system does not permit that, the next below that it permits. AVX2 and AVX512 have equal bits;
    a level with other units has bits of its own.
    """

    AVX2 = 0
    AVX512 = 1
    AVX512_BF16 = 2
    AMX_BF16 = 3
    """Weights, keys and values in bfloat16 by tile registers; weights in 8 bits as the level below."""

    @property
    def title(self) -> str:
        """As people write it."""
        return self.name.replace("AVX512", "AVX-512").replace("_", "-")

    @property
    def option(self) -> CpuKernels:
        """As settings have it."""
        return cast("CpuKernels", self.name.replace("_", ""))
