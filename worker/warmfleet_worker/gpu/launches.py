"""Starts the kernels on tensors."""

from dataclasses import dataclass
from typing import Final

import torch
import triton
from torch import Tensor

from warmfleet_worker.gpu.kernels import (
    add_and_normalise_kernel,
    attend_to_part_kernel,
    gated_kernel,
    merge_parts_kernel,
    rotate_and_store_kernel,
)
from warmfleet_worker.kv_cache.layout import KvLayout

CONTEXT_TILE_TOKENS: Final = 64
"""Read at once by a program."""
MAX_SPLITS: Final = 32
_PROGRAMS_PER_PROCESSOR: Final = 4
_LEAST_PRODUCT_ROWS: Final = 16
"""Of a product of Triton."""
_ACTIVATION_TILE: Final = 1024


@dataclass(frozen=True, slots=True)
class DecodeTables:
    """Where each sequence of a step stands. All int32."""

    positions: Tensor
    """[sequences] of the computed token; -1: no sequence."""
    first_block: Tensor
    """[sequences], into `block_ids`."""
    block_ids: Tensor


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Weights of the norms of query and key heads, [head_dim] each, and their epsilon."""

    query: Tensor
    key: Tensor
    epsilon: float


def rotate_and_store(
    projected: Tensor,
    query: Tensor,
    norms: HeadNorms | None,
    cosine: Tensor,
    signed_sine: Tensor,
    storage: Tensor,
    layout: KvLayout,
    layer: int,
    tables: DecodeTables,
) -> None:
    """Normalise and rotate query and key heads; store keys and values in the arena, queries in `query`.

    Args:
        projected: [sequences, heads + 2 x kv_heads, head_dim].
        query: [sequences, heads, head_dim], written.
        norms: of models that have them.
        cosine: [positions, 1, head_dim], as `signed_sine`, whose first half is negated.
        signed_sine: see `cosine`.
        storage: the arena's, flat.
        layout: the arena's.
        layer: whose keys and values these are.
        tables: of the step.
    """
    sequences, all_heads, head_dim = projected.shape
    half = head_dim // 2
    rotate_and_store_kernel[(sequences, all_heads)](
        projected,
        query,
        norms.query if norms else projected,
        norms.key if norms else projected,
        cosine,
        signed_sine,
        storage,
        tables.positions,
        tables.first_block,
        tables.block_ids,
        norms.epsilon if norms else 0.0,
        *_strides(layout, layer),
        heads=query.shape[1],
        kv_heads=layout.shape.kv_heads,
        head_dim=head_dim,
        half=half,
        half_tile=triton.next_power_of_2(half),
        block_size=layout.block_size_tokens,
        has_norms=norms is not None,
    )


def attend(
    query: Tensor,
    storage: Tensor,
    layout: KvLayout,
    layer: int,
    tables: DecodeTables,
    window_tokens: int,
    splits: int,
) -> Tensor:
    """Attention of each sequence's token over its context, itself included: [sequences, heads, head_dim].

    Args:
        query: [sequences, heads, head_dim], rotated.
        storage: the arena's, flat; the token's own key and value are there.
        layout: the arena's.
        layer: whose keys and values are read.
        tables: of the step.
        window_tokens: a token sees this many tokens, itself included; 0: all before it.
        splits: programs that share a context.
    """
    sequences, heads, head_dim = query.shape
    kv_heads = layout.shape.kv_heads
    group = heads // kv_heads
    head_tile = max(_LEAST_PRODUCT_ROWS, triton.next_power_of_2(head_dim))
    parts = query.new_empty((sequences, heads, splits, head_dim), dtype=torch.float32)
    highest, sums = query.new_empty((2, sequences, heads, splits), dtype=torch.float32)
    attend_to_part_kernel[(sequences, kv_heads, splits)](
        query,
        storage,
        parts,
        highest,
        sums,
        tables.positions,
        tables.first_block,
        tables.block_ids,
        head_dim**-0.5,
        *_strides(layout, layer),
        kv_heads=kv_heads,
        group=group,
        group_tile=max(_LEAST_PRODUCT_ROWS, triton.next_power_of_2(group)),
        head_dim=head_dim,
        head_tile=head_tile,
        block_size=layout.block_size_tokens,
        window=window_tokens,
        tile=CONTEXT_TILE_TOKENS,
        splits=splits,
    )
    out = torch.empty_like(query)
    merge_parts_kernel[(sequences, heads)](
        parts, highest, sums, out, heads=heads, head_dim=head_dim, head_tile=head_tile, splits=splits
    )
    return out


def splits_of(sequences: int, kv_heads: int, processors: int) -> int:
    """Programs that share a context, a power of two: as many as keep a GPU's processors busy.

    Whether contexts are long is not asked: the number is fixed when a graph is captured.
    """
    wanted = _PROGRAMS_PER_PROCESSOR * processors // (sequences * kv_heads)
    return max(1, min(MAX_SPLITS, 1 << max(wanted, 1).bit_length() - 1))


def add_and_normalise(residual: Tensor, added: Tensor | None, weight: Tensor, epsilon: float) -> Tensor:
    """Add to the residual stream in place, unless `added` is None; its RMS norm (arXiv:1910.07467).

    All are [rows, hidden].
    """
    rows, hidden = residual.shape
    out = torch.empty_like(residual)
    add_and_normalise_kernel[(rows,)](
        residual,
        residual if added is None else added,
        weight,
        out,
        epsilon,
        hidden=hidden,
        hidden_tile=triton.next_power_of_2(hidden),
        adds=added is not None,
    )
    return out


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up (arXiv:2002.05202) of the fused [rows, 2 x intermediate]."""
    rows, intermediate = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, intermediate))
    grid = (rows, triton.cdiv(intermediate, _ACTIVATION_TILE))
    gated_kernel[grid](gate_up, out, intermediate=intermediate, tile=_ACTIVATION_TILE)
    return out


def _strides(layout: KvLayout, layer: int) -> tuple[int, int, int, int]:
    """In elements: of the layer's begin, a block, the values behind the keys, a KV head."""
    size = layout.shape.element_bytes
    return (
        layout.layer_offset_bytes(layer) // size,
        layout.block_stride_bytes // size,
        layout.value_stride_bytes // size,
        layout.head_stride_bytes // size,
    )
