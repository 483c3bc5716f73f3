"""Starts the kernels on tensors."""

import math
from dataclasses import dataclass
from typing import Final

import torch
import triton
from torch import Tensor

from warmfleet_worker.gpu.kernels import (
    add_and_normalise_kernel,
    attend_kernel,
    gated_kernel,
    merge_parts_kernel,
    rotate_and_store_kernel,
)
from warmfleet_worker.gpu.step_tables import QueryTiles, StepTables
from warmfleet_worker.kv_cache.layout import KvLayout, KvShape

MAX_SPLITS: Final = 32
"""Programs that share a context at most: merging more of their parts takes longer than it saves."""
PROGRAMS_PER_PROCESSOR: Final = 4
"""Contexts are split until there are so many: while some wait for memory, others compute."""
_LEAST_PRODUCT_ROWS: Final = 16
"""A product of Triton has no fewer rows and columns."""
_ACTIVATION_TILE: Final = 1024
"""Columns that a program of the activation computes."""


@dataclass(frozen=True, slots=True)
class ProgramSize:
    """How much a program of attention computes at once."""

    query_rows: int
    """A row for every token and every query head of a KV head."""
    context_tokens: int


def program_size(head_tile: int, element_bytes: int, *, one_token: bool) -> ProgramSize:
    """What fits into the shared memory of every GPU since 2020: 99 KiB of the smaller ones.

    Of those that fit, 128 rows and 64 tokens were the fastest on an H100 for heads of 128 in bfloat16.
    """
    head_bytes = head_tile * element_bytes
    if one_token:
        return ProgramSize(_LEAST_PRODUCT_ROWS, 64 if head_bytes <= 256 else 32)
    if head_bytes <= 256:
        return ProgramSize(128, 64)
    return ProgramSize(32, 32 if head_bytes <= 512 else 16)


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Keys and values of one layer in an arena."""

    storage: Tensor
    """The whole arena's, flat."""
    layout: KvLayout
    layer: int

    def strides(self) -> tuple[int, int, int, int]:
        """In elements: of the layer's begin, a block, the values behind the keys, a KV head."""
        layout, size = self.layout, self.layout.shape.element_bytes
        return (
            layout.layer_offset_bytes(self.layer) // size,
            layout.block_stride_bytes // size,
            layout.value_stride_bytes // size,
            layout.head_stride_bytes // size,
        )


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
    cache: LayerCache,
    tables: StepTables,
) -> None:
    """Normalise and rotate query and key heads; store keys and values in the arena, queries in `query`.

    Args:
        projected: [rows, heads + 2 x kv_heads, head_dim].
        query: [rows, heads, head_dim], written.
        norms: of models that have them.
        cosine: [positions, 1, head_dim], as `signed_sine`, whose first half is negated.
        signed_sine: see `cosine`.
        cache: where keys and values go.
        tables: of the step.
    """
    rows, all_heads, head_dim = projected.shape
    half = head_dim // 2
    rotate_and_store_kernel[(rows, all_heads)](
        projected,
        query,
        norms.query if norms else projected,
        norms.key if norms else projected,
        cosine,
        signed_sine,
        cache.storage,
        tables.positions,
        tables.first_block,
        tables.block_ids,
        norms.epsilon if norms else 0.0,
        *cache.strides(),
        heads=query.shape[1],
        kv_heads=cache.layout.shape.kv_heads,
        head_dim=head_dim,
        half=half,
        half_tile=triton.next_power_of_2(half),
        block_size=cache.layout.block_size_tokens,
        has_norms=norms is not None,
        num_warps=1,
    )


def attend(
    query: Tensor,
    cache: LayerCache,
    tables: StepTables,
    *,
    window_tokens: int,
    processors: int,
) -> None:
    """Attention of each row's token over its context, itself included, in place of its query.

    Args:
        query: [rows, heads, head_dim], rotated; written. A row without a token keeps its query.
        cache: the rows' own keys and values are there.
        tables: of the step.
        window_tokens: a token sees this many tokens, itself included; 0: all before it.
        processors: of the GPU.
    """
    for tiles in tables.tile_kinds:
        _attend_tiles(query, cache, tables, tiles, window_tokens, processors)


def _attend_tiles(
    query: Tensor,
    cache: LayerCache,
    tables: StepTables,
    tiles: QueryTiles,
    window_tokens: int,
    processors: int,
) -> None:
    _, heads, head_dim = query.shape
    kv_heads, count = cache.layout.shape.kv_heads, len(tiles.first_rows)
    group = heads // kv_heads
    group_tile = max(triton.next_power_of_2(group), _LEAST_PRODUCT_ROWS // tiles.most_tokens)
    head_tile = head_tile_of(head_dim)
    size = program_size(head_tile, query.element_size(), one_token=tiles.most_tokens == 1)
    splits = splits_of(tiles.usual_tiles, kv_heads, processors)
    parts = highest = sums = query  # of one part there is nothing to merge
    if splits > 1:
        shape = (len(tiles.part_rows), heads, splits)
        parts = query.new_empty((*shape, head_dim), dtype=torch.float32)
        highest, sums = (query.new_empty(shape, dtype=torch.float32) for _ in range(2))
    attend_kernel[(count, kv_heads, splits)](
        query,
        cache.storage,
        parts,
        highest,
        sums,
        tiles.first_rows,
        tiles.counts,
        tiles.first_parts,
        tables.positions,
        tables.first_block,
        tables.block_ids,
        splits,
        head_dim**-0.5 * math.log2(math.e),
        *cache.strides(),
        kv_heads=kv_heads,
        group=group,
        group_tile=group_tile,
        most_tokens=tiles.most_tokens,
        head_dim=head_dim,
        head_tile=head_tile,
        block_size=cache.layout.block_size_tokens,
        window=window_tokens,
        context_tile=size.context_tokens,
        is_split=splits > 1,
    )
    if splits > 1:
        merge_parts_kernel[(len(tiles.part_rows), heads)](
            parts,
            highest,
            sums,
            query,
            tiles.part_rows,
            splits,
            heads=heads,
            head_dim=head_dim,
            head_tile=head_tile,
            most_splits=MAX_SPLITS,
        )


def query_tile_tokens(heads: int, shape: KvShape) -> int:
    """Most tokens of a tile in a step whose sequences have several; a power of two."""
    group_tile: int = triton.next_power_of_2(heads // shape.kv_heads)
    size = program_size(head_tile_of(shape.head_dim), shape.element_bytes, one_token=False)
    return max(1, size.query_rows // group_tile)


def head_tile_of(head_dim: int) -> int:
    """Columns of a product for a head."""
    return max(_LEAST_PRODUCT_ROWS, int(triton.next_power_of_2(head_dim)))


def splits_of(tiles: int, kv_heads: int, processors: int) -> int:
    """Programs that share a context, a power of two: as many as keep a GPU's processors busy.

    Whether contexts are long is not asked: the number is fixed when a graph is captured.
    """
    wanted = PROGRAMS_PER_PROCESSOR * processors // (tiles * kv_heads)
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
