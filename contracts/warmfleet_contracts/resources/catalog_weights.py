"""How much memory the weights of catalog models take: a pod requests it before it has the model."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

CATALOG_WEIGHTS_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {"smollm2-135m-instruct": 134_515_008 * 4},
)
"""By name in the catalog: parameters in float32, the widest dtype that `Auto` chooses."""
