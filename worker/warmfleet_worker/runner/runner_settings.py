"""Settings of a model runner, and the sizes that follow from them before any weight is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_contracts.resources.engine_memory import EngineMemory, engine_memory
from warmfleet_worker.kv_cache.layout import KvLayout, KvShape, kv_layout
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.shapes import model_size
from warmfleet_worker.settings import CpuKernels, Dtype, WeightQuantization

ELEMENT_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {"Float32": 4, "BFloat16": 2, "Float16": 2, "Float64": 8}
)
"""By the dtype's name in the settings; "Auto" is resolved before."""


class KvCacheTooSmall(WarmfleetError):  # noqa: N818 - named after what is wrong
    """The KV cache has no room for a single block."""


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Settings of a model runner."""

    kv_cache_bytes: int
    """Memory for keys and values; rounded down to whole blocks."""
    device_memory_percent: int = 0
    """Instead: so much of the device's memory for weights and KV together; 0 = `kv_cache_bytes` counts."""
    block_size_tokens: int = 16
    dtype: Dtype = "Auto"
    """Of weights that are not quantised, activations and KV. Auto: see `runner.resolve_dtype`."""
    weight_quantization: WeightQuantization = "None"
    """By the native step alone."""
    max_model_length_tokens: int = 0
    """Longest sequence; 0, or more than the model was trained for, means the model's own limit."""
    threads: int = 0
    """CPU threads of this process's kernels; 0: one for each core that it may use."""
    cpu_kernels: CpuKernels = "Auto"
    """What computes on a CPU."""
    poison: bool = False
    """Fill blocks with NaN before their first use; for tests."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is loaded, and the sizes that follow."""

    model_path: Path
    config: ModelConfig
    settings: RunnerSettings
    dtype: Dtype
    """Never "Auto"."""
    max_length_tokens: int
    """Of a sequence."""

    @property
    def layout(self) -> KvLayout:
        """Of the KV arena."""
        config = self.config
        shape = KvShape(config.layers, config.kv_heads, config.head_dim, ELEMENT_BYTES[self.dtype])
        return kv_layout(shape, self.settings.block_size_tokens)

    @property
    def memory(self) -> EngineMemory:
        """What weights, cache and workspace will take."""
        settings = self.settings
        return engine_memory(
            model_size(self.config),
            element_bytes=ELEMENT_BYTES[self.dtype],
            block_size_tokens=settings.block_size_tokens,
            kv_cache_bytes=settings.kv_cache_bytes,
            max_model_length_tokens=settings.max_model_length_tokens,
            weight_quantization=settings.weight_quantization,
        )

    def blocks(self, kv_cache_bytes: int) -> int:
        """How many whole blocks a cache of so many bytes holds.

        Raises:
            KvCacheTooSmall: None.
        """
        layout = self.layout
        total_blocks = layout.blocks_in(kv_cache_bytes)
        if total_blocks == 0:
            raise KvCacheTooSmall(
                f"the KV cache of {kv_cache_bytes} bytes is smaller than one block "
                f"({layout.block_stride_bytes} bytes)"
            )
        return total_blocks
