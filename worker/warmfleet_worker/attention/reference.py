"""Causal attention over paged KV, written like its formula. Every backend is tested against it.

    out = softmax(mask(Q K^T / sqrt(head_dim))) V        Vaswani et al. 2017, arXiv:1706.03762, equation 1

Groups of consecutive query heads share one KV head (Ainslie et al. 2023, arXiv:2305.13245).

Supports every device, floating-point dtype, `KvLayout` (padded strides included), number of heads that is a
multiple of the KV heads, and sliding window. Computes in float32, float64 queries in float64. It needs
memory for tokens x context scores and reads the whole context: for tests, never for serving.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from warmfleet_worker.attention.kv_arena import KvArena


def reference_attention(  # noqa: PLR0917 - what the formula reads, in its order
    arena: KvArena,
    layer: int,
    query: Tensor,
    block_ids: Sequence[int],
    first_position: int,
    window_tokens: int = 0,
) -> Tensor:
    """Attend with one sequence's queries, [tokens, heads, head_dim]; returns that shape, float32 or float64.

    Query i has position `first_position` + i. Position j is in block `block_ids[j // block size]`. The keys
    and values of all positions up to the last query are in the arena already. `window_tokens` 0: no window.
    """
    tokens, heads, head_dim = query.shape
    context = first_position + tokens
    dtype = torch.promote_types(query.dtype, torch.float32)

    # Gather block by block: [blocks, 2, kv_heads, block size, head_dim] -> 2 x [kv_heads, context, head_dim].
    blocks = torch.stack([arena.layer(layer)[block_id] for block_id in block_ids])
    keys, values = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context].to(dtype)
    group = heads // keys.shape[0]
    keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)

    scores = query.to(dtype).transpose(0, 1) @ keys.transpose(1, 2) / math.sqrt(head_dim)
    age = torch.arange(first_position, context)[:, None] - torch.arange(context)
    visible = (age >= 0) & (age < window_tokens) if window_tokens else age >= 0
    weights = torch.softmax(scores.masked_fill(~visible.to(scores.device), -math.inf), dim=-1)
    output: Tensor = weights @ values
    return output.transpose(0, 1)
