"""What one worker needs for the contexts of so many users at once, as engine, pods and scheduler count."""

import math
from dataclasses import dataclass
from typing import Final

from warmfleet_contracts.resources.engine_memory import (
    QUANTISED_WEIGHT_BITS,
    EngineMemory,
    ModelSize,
    block_bytes,
    engine_memory,
    longest_sequence_tokens,
)
from warmfleet_contracts.resources.worker_memory import ELEMENT_BYTES, PROCESS_BYTES
from warmfleet_worker.engine.capacity import blocks_for_sequences

_MIB: Final = 2**20
DTYPES: Final = tuple(dtype for dtype in ELEMENT_BYTES if dtype != "Auto")
WEIGHT_QUANTIZATIONS: Final = ("None", *QUANTISED_WEIGHT_BITS)


class DoesNotFitError(ValueError):
    """A context is longer than the longest sequence of the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """A model and the settings of an engine that decide what it needs."""

    model: ModelSize
    block_size_tokens: int
    max_model_length_tokens: int = 0
    """0: the model's own limit."""
    weight_quantization: str = "None"

    @property
    def longest_tokens(self) -> int:
        return longest_sequence_tokens(self.model, self.max_model_length_tokens)

    def kv_bytes_per_token(self, dtype: str) -> int:
        return block_bytes(self.model, element_bytes=ELEMENT_BYTES[dtype], block_size_tokens=1)

    def memory(self, dtype: str, kv_cache_bytes: int) -> EngineMemory:
        """What an engine with a KV cache of this size holds."""
        return engine_memory(
            self.model,
            element_bytes=ELEMENT_BYTES[dtype],
            block_size_tokens=self.block_size_tokens,
            kv_cache_bytes=kv_cache_bytes,
            max_model_length_tokens=self.max_model_length_tokens,
            weight_quantization=self.weight_quantization,
        )

    def pod_bytes(self, dtype: str, kv_cache_bytes: int) -> int:
        """Memory of a worker with it: the engine and both processes."""
        return PROCESS_BYTES + self.memory(dtype, kv_cache_bytes).total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a KV cache of a given size holds."""

    dtype: str
    bytes_per_token: int
    blocks: int
    tokens: int
    pod_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one worker needs so that so many users run at once."""

    dtype: str
    bytes_per_token: int
    blocks: int
    """Of the pool: what the users hold, and what admissions leave free."""
    kv_cache_bytes: int
    """Of those blocks."""
    kv_cache_size_bytes: int
    """Whole mebibytes for `spec.kvCache.size`."""
    memory: EngineMemory
    """With a KV cache of that size."""
    pod_bytes: int


def room(shape: EngineShape, dtype: str, kv_cache_bytes: int) -> Room:
    """What a KV cache of `kv_cache_bytes` holds."""
    bytes_per_token = shape.kv_bytes_per_token(dtype)
    blocks = kv_cache_bytes // (bytes_per_token * shape.block_size_tokens)
    return Room(
        dtype=dtype,
        bytes_per_token=bytes_per_token,
        blocks=blocks,
        tokens=blocks * shape.block_size_tokens,
        pod_bytes=shape.pod_bytes(dtype, kv_cache_bytes),
    )


def need(shape: EngineShape, dtype: str, *, context_tokens: int, users: int) -> Need:
    """What `users` of `context_tokens` each need, prompt and answer together, without a shared prefix.

    Raises:
        DoesNotFitError: the engine computes no sequence of that length.
    """
    if context_tokens > shape.longest_tokens:
        raise DoesNotFitError(
            f"a context of {context_tokens:,} tokens is longer than the longest sequence, "
            f"{shape.longest_tokens:,} tokens"
        )
    blocks = blocks_for_sequences(users, context_tokens, shape.block_size_tokens)
    bytes_per_token = shape.kv_bytes_per_token(dtype)
    kv_cache_bytes = blocks * shape.block_size_tokens * bytes_per_token
    size_bytes = math.ceil(kv_cache_bytes / _MIB) * _MIB
    return Need(
        dtype=dtype,
        bytes_per_token=bytes_per_token,
        blocks=blocks,
        kv_cache_bytes=kv_cache_bytes,
        kv_cache_size_bytes=size_bytes,
        memory=shape.memory(dtype, size_bytes),
        pod_bytes=shape.pod_bytes(dtype, size_bytes),
    )
