"""Sizes of the catalog's models: a pod requests the memory for one before it has the model."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from warmfleet_contracts.resources.engine_memory import ModelSize

CATALOG_SIZES: Final[Mapping[str, ModelSize]] = MappingProxyType(
    {
        "smollm2-135m-instruct": ModelSize(
            parameters=134_515_008, layers=30, kv_heads=3, head_dim=64, max_position_tokens=8192
        )
    },
)
"""By name in the catalog."""
