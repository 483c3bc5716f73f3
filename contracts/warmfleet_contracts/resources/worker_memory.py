"""How much memory a worker needs, as far as its spec determines it: for pods and for local fleets."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from warmfleet_contracts.resources.catalog_sizes import CATALOG_SIZES
from warmfleet_contracts.resources.engine_memory import ModelSize, engine_memory
from warmfleet_contracts.resources.model_deployment import ModelDeploymentSpec

PROCESS_BYTES: Final = 640 * 2**20
"""Of a worker besides what `engine_memory` counts: server, engine, their libraries, activations."""
ELEMENT_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {"Auto": 4, "Float32": 4, "BFloat16": 2, "Float16": 2}
)
"""By `spec.engine.dtype`; of Auto the widest that it can choose, which only the node decides."""


def worker_memory_bytes(spec: ModelDeploymentSpec, model: ModelSize | None = None) -> int:
    """Memory of a worker.

    Args:
        spec: a KV cache without `size` counts as nothing.
        model: sizes of a model that is not in the catalog; None: not known, and left out.
    """
    catalog = spec.model.source.catalog
    if catalog is not None:
        model = CATALOG_SIZES.get(catalog.name)
    kv_cache_bytes = spec.kv_cache.size_bytes or 0
    if model is None:
        return PROCESS_BYTES + kv_cache_bytes
    memory = engine_memory(
        model,
        element_bytes=ELEMENT_BYTES[spec.engine.dtype],
        block_size_tokens=spec.kv_cache.block_size_tokens,
        kv_cache_bytes=kv_cache_bytes,
        max_model_length_tokens=spec.engine.max_model_length_tokens or 0,
        weight_quantization=spec.engine.weight_quantization,
    )
    return PROCESS_BYTES + memory.total_bytes
