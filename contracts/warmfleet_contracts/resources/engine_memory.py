"""What an engine of type Warmfleet holds in memory, from the sizes of its model. Arithmetic alone.

Shared by the engine, which refuses to start with less, `warmfleet model size`, and the operator, whose pods
request it: none of them has to load a model or torch for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

GATHERED_TOKENS: Final = 8192
"""Padded context that one batch of decodes may gather, unless a single sequence is longer."""


QUANTISED_WEIGHT_BITS: Final[Mapping[str, int]] = MappingProxyType({"Int8": 9})
"""Of a weight, by `spec.engine.weightQuantization`, its share of a scale and of padding included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What of a model determines the memory that it takes. Counts of elements."""

    parameters: int
    layers: int
    kv_heads: int
    head_dim: int
    max_position_tokens: int
    """Longest sequence that the model was trained for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Memory of an engine besides its process, for as long as it runs."""

    weights_bytes: int
    """Parameters, and the table of rotations."""
    arena_bytes: int
    """Keys and values, and the block of zeros that pads block tables."""
    workspace_bytes: int
    """Keys and values of one layer that attention gathers at a time; grows with the longest sequence."""

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.arena_bytes + self.workspace_bytes


def engine_memory(
    model: ModelSize,
    *,
    element_bytes: int,
    block_size_tokens: int,
    kv_cache_bytes: int,
    max_model_length_tokens: int = 0,
    weight_quantization: str = "None",
) -> EngineMemory:
    """Memory of an engine that computes in elements of `element_bytes`.

    Args:
        model: its sizes.
        element_bytes: of weights that are not quantised, activations, keys and values.
        block_size_tokens: tokens per block.
        kv_cache_bytes: what the KV cache is given; rounded down to whole blocks.
        max_model_length_tokens: longest sequence; 0, or more than the model's own limit, is that limit.
        weight_quantization: "None", or one of QUANTISED_WEIGHT_BITS.
    """
    is_quantised = weight_quantization != "None"
    weight_bits = QUANTISED_WEIGHT_BITS[weight_quantization] if is_quantised else 8 * element_bytes
    longest = longest_sequence_tokens(model, max_model_length_tokens)
    block = block_bytes(model, element_bytes=element_bytes, block_size_tokens=block_size_tokens)
    gathered = workspace_tokens(block_size_tokens, longest)
    return EngineMemory(
        weights_bytes=-(-model.parameters * weight_bits // 8) + 2 * longest * model.head_dim * element_bytes,
        arena_bytes=(kv_cache_bytes // block + 1) * block,
        workspace_bytes=2 * model.kv_heads * gathered * model.head_dim * element_bytes,
    )


def longest_sequence_tokens(model: ModelSize, max_model_length_tokens: int) -> int:
    """Longest sequence of an engine with this setting; 0 leaves it to the model."""
    return min(max_model_length_tokens or model.max_position_tokens, model.max_position_tokens)


def block_bytes(model: ModelSize, *, element_bytes: int, block_size_tokens: int) -> int:
    """Memory of one block: a key and a value per token, layer and KV head."""
    return 2 * model.layers * model.kv_heads * model.head_dim * element_bytes * block_size_tokens


def workspace_tokens(block_size_tokens: int, max_context_tokens: int) -> int:
    """Tokens that the gather workspace holds: the longest sequence with a partial block at each end."""
    return max(GATHERED_TOKENS, (max_context_tokens // block_size_tokens + 2) * block_size_tokens)
