"""How much memory a worker needs, as far as its spec determines it: for pods and for local fleets."""

from typing import Final

from warmfleet_contracts.resources.catalog_weights import CATALOG_WEIGHTS_BYTES
from warmfleet_contracts.resources.model_deployment import ModelDeploymentSpec

PROCESS_BYTES: Final = 512 * 2**20
"""Of a worker besides weights and KV cache: server, engine, their libraries, activations."""


def worker_memory_bytes(spec: ModelDeploymentSpec, weights_bytes: int | None = None) -> int:
    """Memory of a worker.

    Args:
        spec: a KV cache without `size` counts as nothing.
        weights_bytes: of a model that is not in the catalog; None: not known, and left out.
    """
    catalog = spec.model.source.catalog
    if catalog is not None:
        weights_bytes = CATALOG_WEIGHTS_BYTES.get(catalog.name, 0)
    return PROCESS_BYTES + (weights_bytes or 0) + (spec.kv_cache.size_bytes or 0)
