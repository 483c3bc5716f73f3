"""Paged causal attention in plain PyTorch: gathers blocks, then one matrix product per group of sequences.

The backend for CPUs, and for GPUs where the kernels of `gpu` do not compute. What it computes is
`reference.reference_attention`. The heads of one KV head are computed together, as rows of one small
matrix, so that each key and value is read once (GQA, Ainslie et al. 2023, arXiv:2305.13245).

Chunks of one token (decodes) are gathered into padded batches; longer chunks go one by one, in tiles of
queries, so that the scores of a long chunk over a long context never exist at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from torch import Tensor

from warmfleet_contracts.resources.engine_memory import workspace_tokens
from warmfleet_worker.attention.backend import UnsupportedLayout
from warmfleet_worker.attention.grouping import group_by_length
from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.kv_cache.layout import KEYS_AND_VALUES, KvLayout

QUERY_TILE_TOKENS: Final = 128
MASK_BUDGET_BYTES: Final = 16 * 1024 * 1024
"""Tiles shrink, down to one query, until the mask of a tile fits."""


class TorchGatherAttention:
    """Attention backend for every device and dtype of PyTorch; use it where no faster backend is built.

    Supports strides that are whole token rows (`check_layout`), grouped query heads and sliding windows.

        attention = TorchGatherAttention(arena, heads=32, window_tokens=0, max_context_tokens=4096)
        attend = attention.plan(batch.chunks)
        output = attend(layer, query, key_value)  # once per layer, in order
    """

    def __init__(self, arena: KvArena, *, heads: int, window_tokens: int, max_context_tokens: int) -> None:
        """Bind to an arena.

        Args:
            arena: Where keys and values are written and read.
            heads: Query heads; a multiple of the arena's KV heads.
            window_tokens: A token sees this many tokens, itself included; 0 means all before it.
            max_context_tokens: Longest sequence; sizes the gather workspace, once.

        Raises:
            UnsupportedLayout: A stride is not a whole number of token rows.
        """
        check_layout(arena.layout)
        shape = arena.layout.shape
        self.heads = heads
        self.kv_heads = shape.kv_heads
        self.head_dim = shape.head_dim
        self.block_size = arena.layout.block_size_tokens
        self.window_tokens = window_tokens
        self._arena = arena
        self._rows = _TokenRows(arena)
        self._workspace_tokens = workspace_tokens(self.block_size, max_context_tokens)
        self._workspace = torch.empty(
            KEYS_AND_VALUES * shape.kv_heads * self._workspace_tokens * shape.head_dim,
            dtype=arena.storage.dtype,
            device=arena.storage.device,
        )

    def plan(self, chunks: Sequence[Chunk]) -> "TorchGatherPlan":
        """Plan one step."""
        slots: list[int] = []
        tiled: list[_TiledChunk] = []
        decodes: list[_Span] = []
        for chunk in chunks:
            span = self._span(chunk, row=len(slots))
            slots += self._rows.slots(chunk)
            if span.tokens == 1:
                decodes.append(span)
            else:
                tiled.append(self._tile(span))
        groups = group_by_length(
            [len(span.block_ids) * self.block_size for span in decodes], self._workspace_tokens
        )
        alone = len(groups) == 1 and not tiled
        return TorchGatherPlan(
            backend=self,
            slots=self._rows.write_index(slots),
            decodes=tuple(self._group([decodes[index] for index in group], alone=alone) for group in groups),
            tiled=tuple(tiled),
        )

    def write(self, layer: int, key_value: Tensor, slots: Tensor) -> None:
        """Store [tokens, 2 x kv_heads, head_dim]."""
        self._rows.of_layer(layer).index_copy_(0, slots, key_value.reshape(-1, self.head_dim))

    def gather(self, layer: int, pages: Tensor, sequences: int) -> Tensor:
        """Read pages into the workspace: [2, sequences, kv_heads, tokens, head_dim]."""
        row = self.block_size * self.head_dim
        out = self._workspace[: pages.shape[0] * row].view(-1, row)
        torch.index_select(self._rows.pages_of_layer(layer), 0, pages, out=out)
        return out.view(KEYS_AND_VALUES, sequences, self.kv_heads, -1, self.head_dim)

    def _span(self, chunk: Chunk, row: int) -> "_Span":
        tokens = len(chunk.token_ids)
        end = chunk.first_position + tokens
        blocks = -(-end // self.block_size)
        assert tokens > 0
        assert len(chunk.block_ids) >= blocks, chunk
        first = max(0, chunk.first_position + 1 - self.window_tokens) if self.window_tokens else 0
        first_block = first // self.block_size
        return _Span(
            row=row,
            tokens=tokens,
            hidden_head_tokens=first - first_block * self.block_size,
            gathered_tokens=end - first_block * self.block_size,
            block_ids=chunk.block_ids[first_block:blocks],
        )

    def _group(self, spans: list["_Span"], *, alone: bool) -> "_DecodeGroup":
        longest = max(span.gathered_tokens for span in spans)
        blocks = max(len(span.block_ids) for span in spans)
        table = [
            [*span.block_ids, *[self._arena.zero_block] * (blocks - len(span.block_ids))] for span in spans
        ]
        device = self._workspace.device
        mask = None
        skipped = 0
        if len(spans) == 1:
            skipped = spans[0].hidden_head_tokens
        elif any(span.hidden_head_tokens or span.gathered_tokens < longest for span in spans):
            positions = torch.arange(longest)
            heads = torch.tensor([[span.hidden_head_tokens] for span in spans])
            ends = torch.tensor([[span.gathered_tokens] for span in spans])
            mask = self._as_mask((positions >= heads) & (positions < ends))[:, None, None, :]
        return _DecodeGroup(
            rows=None if alone else torch.tensor([span.row for span in spans], device=device),
            sequences=len(spans),
            pages=self._rows.read_index(table),
            skipped_tokens=skipped,
            tokens=longest,
            stale_rows=self._stale_rows(spans, blocks * self.block_size, longest),
            mask=mask,
        )

    def _stale_rows(self, spans: list["_Span"], padded_tokens: int, longest: int) -> Tensor | None:
        """Gathered rows of slots that are not written yet: 0 x NaN would be NaN in the sum."""
        tails = [
            sequence * self.kv_heads * padded_tokens + token
            for sequence, span in enumerate(spans)
            for token in range(span.gathered_tokens, min(len(span.block_ids) * self.block_size, longest))
        ]
        if not tails:
            return None
        planes = KEYS_AND_VALUES * len(spans) * self.kv_heads * padded_tokens
        offsets = torch.tensor(
            [
                plane + head * padded_tokens
                for plane in range(0, planes, planes // KEYS_AND_VALUES)
                for head in range(self.kv_heads)
            ]
        )
        return (torch.tensor(tails)[:, None] + offsets).flatten().to(self._workspace.device)

    def _tile(self, span: "_Span") -> "_TiledChunk":
        group = self.heads // self.kv_heads
        context = span.gathered_tokens - span.hidden_head_tokens
        row_bytes = group * context * self._workspace.element_size()
        tile = max(1, min(QUERY_TILE_TOKENS, span.tokens, MASK_BUDGET_BYTES // row_bytes))
        # Counted back from the newest key of a tile, what a query sees is the same in every tile.
        age = torch.arange(tile - 1, -1, -1)[:, None]
        key_age = torch.arange(context - 1, -1, -1)
        visible = key_age >= age
        if self.window_tokens:
            visible &= key_age < age + self.window_tokens
        return _TiledChunk(
            first_row=span.row,
            tokens=span.tokens,
            context_start=span.hidden_head_tokens,
            context_end=span.gathered_tokens,
            tile_tokens=tile,
            pages=self._rows.read_index([span.block_ids]),
            mask=self._as_mask(visible).repeat_interleave(group, dim=0),
        )

    def _as_mask(self, visible: Tensor) -> Tensor:
        mask = torch.zeros(visible.shape, dtype=self._workspace.dtype)
        return mask.masked_fill_(~visible, -math.inf).to(self._workspace.device)


@dataclass(frozen=True, slots=True)
class TorchGatherPlan:
    """One step's indices and masks. Called once per layer, in order."""

    backend: TorchGatherAttention
    slots: Tensor
    decodes: tuple["_DecodeGroup", ...]
    tiled: tuple["_TiledChunk", ...]

    def __call__(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """Write, then attend; see `StepAttention`."""
        self.backend.write(layer, key_value, self.slots)
        if not self.tiled and len(self.decodes) == 1:
            return self._decode(layer, query, self.decodes[0])
        out = torch.empty_like(query)
        for group in self.decodes:
            assert group.rows is not None
            out.index_copy_(0, group.rows, self._decode(layer, query.index_select(0, group.rows), group))
        for chunk in self.tiled:
            self._prefill(layer, query, chunk, out)
        return out

    def _decode(self, layer: int, query: Tensor, group: "_DecodeGroup") -> Tensor:
        backend = self.backend
        gathered = backend.gather(layer, group.pages, group.sequences)
        if group.stale_rows is not None:
            gathered.view(-1, backend.head_dim).index_fill_(0, group.stale_rows, 0)
        keys, values = gathered[..., group.skipped_tokens : group.tokens, :]
        rows = query.reshape(group.sequences, backend.kv_heads, -1, backend.head_dim)
        return attend(rows, keys, values, group.mask).reshape(query.shape)

    def _prefill(self, layer: int, query: Tensor, chunk: "_TiledChunk", out: Tensor) -> None:
        backend = self.backend
        keys, values = backend.gather(layer, chunk.pages, 1)
        window = backend.window_tokens or chunk.context_end
        for first in range(0, chunk.tokens, chunk.tile_tokens):
            tokens = min(chunk.tile_tokens, chunk.tokens - first)
            end = chunk.context_end - chunk.tokens + first + tokens
            start = max(chunk.context_start, end - tokens - window + 1)
            tile = slice(chunk.first_row + first, chunk.first_row + first + tokens)
            # [tokens, heads, head_dim] -> per KV head the rows of (token, head of the group).
            by_kv_head = query[tile].view(tokens, backend.kv_heads, -1, backend.head_dim).transpose(0, 1)
            attended = attend(
                by_kv_head.flatten(1, 2).unsqueeze(0),
                keys[:, :, start:end],
                values[:, :, start:end],
                chunk.mask[chunk.mask.shape[0] - tokens * by_kv_head.shape[2] :, start - end :],
            )
            out[tile] = attended.view(by_kv_head.shape).transpose(0, 1).flatten(1, 2)


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(Q K^T / sqrt(head_dim) + mask) V over [batch, kv_heads, rows or tokens, head_dim]."""
    if _is_fused_kernel_worse(query):
        scores = query @ keys.transpose(2, 3)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)) / math.sqrt(query.shape[3])
        if mask is not None:
            scores += mask
        return scores.softmax(-1).to(values.dtype) @ values
    if mask is not None and mask.is_cuda:
        # A kernel of a GPU reads 16 bytes at a time: of a slice that begins elsewhere it ends the process's
        # CUDA context with a misaligned address, and PyTorch copies only where strides are odd.
        mask = mask.contiguous()
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)


def _is_fused_kernel_worse(query: Tensor) -> bool:
    """Whether PyTorch's kernel is slower, or less exact, than what it is made of.

    On a CPU it is up to twelve times slower for one row of 16 bits. On a GPU float32 is nine times its
    epsilon away from the reference, where plain products are within four.
    """
    if query.device.type == "cpu":
        return query.shape[2] == 1 and query.dtype.itemsize == 2
    return query.dtype == torch.float32


def check_layout(layout: KvLayout) -> None:
    """Refuse strides that are not whole token rows; padding of any number of rows is fine."""
    row = layout.shape.head_dim * layout.shape.element_bytes
    strides = {
        "token": layout.token_stride_bytes,
        "head": layout.head_stride_bytes,
        "value": layout.value_stride_bytes,
        "layer": layout.layer_stride_bytes,
        "block": layout.block_stride_bytes,
    }
    for name, stride in strides.items():
        if stride % row or (name == "token" and stride != row):
            raise UnsupportedLayout(
                f"torch_gather attention: {name} stride {stride} does not fit rows of {row} bytes"
            )


@dataclass(frozen=True, slots=True)
class _Span:
    """One chunk's queries, and the part of its context that is gathered."""

    row: int
    """Of the chunk's first token in the step's flat tokens."""
    tokens: int
    hidden_head_tokens: int
    """Gathered tokens before the window of the chunk's first token: same block, but not visible."""
    gathered_tokens: int
    """From the start of the first visible block to the chunk's last token."""
    block_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    rows: Tensor | None
    """None: the group is the whole step, in order."""
    sequences: int
    pages: Tensor
    skipped_tokens: int
    tokens: int
    stale_rows: Tensor | None
    mask: Tensor | None
    """[sequences, 1, 1, tokens]."""


@dataclass(frozen=True, slots=True)
class _TiledChunk:
    first_row: int
    tokens: int
    context_start: int
    context_end: int
    tile_tokens: int
    pages: Tensor
    mask: Tensor
    """[tile tokens x heads per KV head, context], of the last tile; others use its end."""


class _TokenRows:
    """Views of the arena as rows of one token's head, and as pages of one block's head."""

    def __init__(self, arena: KvArena) -> None:
        layout, shape = arena.layout, arena.layout.shape
        row_bytes = shape.head_dim * shape.element_bytes
        self._block_size = layout.block_size_tokens
        self._block_rows = layout.block_stride_bytes // row_bytes
        value_rows = layout.value_stride_bytes // row_bytes
        head_rows = layout.head_stride_bytes // row_bytes
        self._page_rows = math.gcd(self._block_rows, value_rows, head_rows)
        device = arena.storage.device
        heads = torch.arange(shape.kv_heads, device=device) * head_rows
        self._heads = torch.cat((heads, heads + value_rows))
        layer_rows = [layout.layer_offset_bytes(layer) // row_bytes for layer in range(shape.layers)]
        rows = arena.storage.view(-1, shape.head_dim)
        self._layers = [rows[first:] for first in layer_rows]
        # Pages start at every common divisor of the strides, so that one index reaches all of them;
        # where that is less than a page, the rows of this view overlap. It is only ever read.
        page = layout.block_size_tokens * shape.head_dim
        self._pages = [
            view.as_strided(
                ((view.shape[0] - layout.block_size_tokens) // self._page_rows + 1, page),
                (self._page_rows * shape.head_dim, 1),
            )
            for view in self._layers
        ]

    def of_layer(self, layer: int) -> Tensor:
        return self._layers[layer]

    def pages_of_layer(self, layer: int) -> Tensor:
        return self._pages[layer]

    def slots(self, chunk: Chunk) -> list[int]:
        """Row of each token's first key head."""
        size, block_rows, block_ids = self._block_size, self._block_rows, chunk.block_ids
        positions = range(chunk.first_position, chunk.first_position + len(chunk.token_ids))
        return [block_ids[position // size] * block_rows + position % size for position in positions]

    def write_index(self, slots: list[int]) -> Tensor:
        """Rows of [tokens, 2 x kv_heads], flat."""
        tokens = torch.tensor(slots, dtype=torch.int64).to(self._heads.device)
        return (tokens[:, None] + self._heads).flatten()

    def read_index(self, block_table: Sequence[Sequence[int]]) -> Tensor:
        """Pages of [2, sequences, kv_heads, blocks], flat."""
        blocks = torch.tensor(block_table, dtype=torch.int64).to(self._heads.device)
        heads = self._heads.view(KEYS_AND_VALUES, 1, -1, 1)
        return ((blocks[:, None, :] * self._block_rows + heads) // self._page_rows).flatten()
