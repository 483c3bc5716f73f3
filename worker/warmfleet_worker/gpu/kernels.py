"""Kernels in Triton for the steps of a decoder; `launches` starts them.

A step's rows are the tokens that it computes. A row's position is -1 where a graph has more rows than the
step has tokens: nothing is read or written for it. Sums are in float32; what is stored is rounded once. Block
tables are flat: the one of a row's sequence begins at `first_block[row]` of `block_ids`. Strides are in
elements.

A program of attention computes a tile of consecutive tokens of one sequence, with the softmax in one pass
(Milakov and Gimelshein 2018, arXiv:1805.02867; in tiles: FlashAttention, arXiv:2205.14135). Where there are
few tiles, several programs share a context, and their parts are merged (FlashDecoding, Dao et al. 2023). The
query heads that share a KV head are rows of one product, so that keys and values are read once (GQA, Ainslie
et al. 2023, arXiv:2305.13245).
"""

import triton
import triton.language as tl

LOWEST_SCORE = tl.constexpr(-1e38)
"""Finite: the difference of two infinities is no number."""


# Parts of one tensor that begin anywhere, and numbers that change from step to step: for each of their
# alignments and kinds Triton would compile a kernel anew, in the middle of a step.
CHANGING = (
    "positions", "first_block", "block_ids", "first_rows", "counts", "first_parts", "part_rows", "splits"
)  # fmt: skip


@triton.jit(do_not_specialize=CHANGING, do_not_specialize_on_alignment=CHANGING)
def rotate_and_store_kernel(
    projected,
    query,
    query_weight,
    key_weight,
    cosine,
    signed_sine,
    storage,
    positions,
    first_block,
    block_ids,
    epsilon,
    layer_begin,
    block_stride,
    value_stride,
    head_stride,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    half: tl.constexpr,
    half_tile: tl.constexpr,
    block_size: tl.constexpr,
    has_norms: tl.constexpr,
) -> None:
    """Programs: [rows, heads + 2 x kv_heads]."""
    computed, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    given = tl.load(positions + computed)
    position = tl.maximum(given, 0)
    element = query.dtype.element_ty
    index = tl.arange(0, half_tile)
    inside = index < half
    begin = projected + (computed * (heads + 2 * kv_heads) + head) * head_dim
    low = tl.load(begin + index, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(begin + half + index, mask=inside, other=0.0).to(tl.float32)
    if head < heads + kv_heads:
        if has_norms:
            mean = (tl.sum(low * low, 0) + tl.sum(high * high, 0)) / head_dim
            scale = 1.0 / tl.sqrt(mean + epsilon)
            if head < heads:
                low_weight = tl.load(query_weight + index, mask=inside, other=0.0).to(tl.float32)
                high_weight = tl.load(query_weight + half + index, mask=inside, other=0.0).to(tl.float32)
            else:
                low_weight = tl.load(key_weight + index, mask=inside, other=0.0).to(tl.float32)
                high_weight = tl.load(key_weight + half + index, mask=inside, other=0.0).to(tl.float32)
            low = low * scale * low_weight
            high = high * scale * high_weight
        row = position * head_dim + index
        low_cosine = tl.load(cosine + row, mask=inside, other=0.0).to(tl.float32)
        high_cosine = tl.load(cosine + row + half, mask=inside, other=0.0).to(tl.float32)
        low_sine = tl.load(signed_sine + row, mask=inside, other=0.0).to(tl.float32)
        high_sine = tl.load(signed_sine + row + half, mask=inside, other=0.0).to(tl.float32)
        rotated_low = low * low_cosine + high * low_sine
        high = high * high_cosine + low * high_sine
        low = rotated_low
    if head < heads:
        target = query + (computed * heads + head) * head_dim
        tl.store(target + index, low.to(element), mask=inside)
        tl.store(target + half + index, high.to(element), mask=inside)
    elif given >= 0:
        block = tl.load(block_ids + tl.load(first_block + computed) + position // block_size).to(tl.int64)
        plane = (head - heads) // kv_heads
        kv_head = (head - heads) % kv_heads
        target = (
            storage
            + layer_begin
            + block * block_stride
            + plane * value_stride
            + kv_head * head_stride
            + (position % block_size) * head_dim
        )
        tl.store(target + index, low.to(element), mask=inside)
        tl.store(target + half + index, high.to(element), mask=inside)


@triton.jit(do_not_specialize=CHANGING, do_not_specialize_on_alignment=CHANGING)
def attend_kernel(
    query,
    storage,
    parts,
    highest,
    sums,
    first_rows,
    counts,
    first_parts,
    positions,
    first_block,
    block_ids,
    splits,
    scale,
    layer_begin,
    block_stride,
    value_stride,
    head_stride,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    group_tile: tl.constexpr,
    most_tokens: tl.constexpr,
    head_dim: tl.constexpr,
    head_tile: tl.constexpr,
    block_size: tl.constexpr,
    window: tl.constexpr,
    context_tile: tl.constexpr,
    is_split: tl.constexpr,
) -> None:
    """Programs: [tiles, kv_heads, splits]. The result replaces `query`, or is in `parts` if it is split."""
    query_tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row, count = tl.maximum(tl.load(first_rows + query_tile), 0), tl.load(counts + query_tile)
    position = tl.load(positions + first_row)
    length = tl.where(count > 0, position + count, 0)
    first = tl.maximum(position + 1 - window, 0) if window > 0 else 0
    # From where a whole number of them ends: the blocks of each are read whole.
    begin = first // context_tile * context_tile
    share = tl.cdiv(tl.cdiv(length - begin, context_tile), splits) * context_tile
    low = begin + split * share
    high = tl.minimum(length, low + share)
    rows, dims = tl.arange(0, most_tokens * group_tile), tl.arange(0, head_tile)
    token, member = rows // group_tile, rows % group_tile
    is_row, is_dim = (token < count) & (member < group), dims < head_dim
    is_query = is_row[:, None] & is_dim[None, :]
    query_head = ((first_row.to(tl.int64) + token) * kv_heads + kv_head) * group + member
    own = query + query_head[:, None] * head_dim + dims[None, :]
    queries = tl.load(own, mask=is_query, other=0.0)
    best = tl.full([most_tokens * group_tile], LOWEST_SCORE, tl.float32)
    total = tl.zeros([most_tokens * group_tile], tl.float32)
    sum_of_values = tl.zeros([most_tokens * group_tile, head_tile], tl.float32)
    table = block_ids + tl.load(first_block + first_row)
    plane, newest = storage + layer_begin + kv_head * head_stride, position + token
    for start in range(low, high, context_tile):
        tokens = start + tl.arange(0, context_tile)
        is_stored = (tokens < length) & (tokens >= first)
        blocks = tl.load(table + tokens // block_size, mask=is_stored, other=0).to(tl.int64)
        token_rows = blocks * block_stride + (tokens % block_size) * head_dim
        # What is not visible may be of no sequence yet, and 0 x NaN would be NaN.
        is_read = is_stored[:, None] & is_dim[None, :]
        keys = tl.load(plane + token_rows[:, None] + dims[None, :], mask=is_read, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        visible = tokens[None, :] <= newest[:, None]
        if window > 0:
            visible = visible & (tokens[None, :] > newest[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        shrink = tl.exp2(best - new_best)
        weights = tl.exp2(scores - new_best[:, None])
        values = tl.load(plane + value_stride + token_rows[:, None] + dims[None, :], mask=is_read, other=0.0)
        total = total * shrink + tl.sum(weights, 1)
        added = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        sum_of_values = sum_of_values * shrink[:, None] + added
        best = new_best
    if not is_split:
        attended = sum_of_values / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(own, attended.to(query.dtype.element_ty), mask=is_query)
    else:
        kept = tl.load(first_parts + query_tile).to(tl.int64) + token
        part = ((kept * kv_heads + kv_head) * group + member) * splits + split
        tl.store(parts + part[:, None] * head_dim + dims[None, :], sum_of_values, mask=is_query)
        tl.store(highest + part, best, mask=is_row)
        tl.store(sums + part, total, mask=is_row)


@triton.jit(do_not_specialize=CHANGING, do_not_specialize_on_alignment=CHANGING)
def merge_parts_kernel(
    parts,
    highest,
    sums,
    out,
    part_rows,
    splits,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    head_tile: tl.constexpr,
    most_splits: tl.constexpr,
) -> None:
    """Programs: [tokens of all tiles, heads]."""
    row, head = tl.load(part_rows + tl.program_id(0)).to(tl.int64), tl.program_id(1)
    if row >= 0:
        index, dims = tl.arange(0, most_splits), tl.arange(0, head_tile)
        is_part, is_dim = index < splits, dims < head_dim
        part = (tl.program_id(0).to(tl.int64) * heads + head) * splits + index
        best = tl.load(highest + part, mask=is_part, other=LOWEST_SCORE)
        # A part without tokens has the lowest and a sum of 0; so have all where there is no token.
        weights = tl.exp2(best - tl.max(best, 0))
        total = tl.sum(weights * tl.load(sums + part, mask=is_part, other=0.0), 0)
        is_read = is_part[:, None] & is_dim[None, :]
        values = tl.load(parts + part[:, None] * head_dim + dims[None, :], mask=is_read, other=0.0)
        merged = tl.sum(values * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
        target = out + (row * heads + head) * head_dim + dims
        tl.store(target, merged.to(out.dtype.element_ty), mask=is_dim)


@triton.jit
def add_and_normalise_kernel(
    residual,
    added,
    weight,
    out,
    epsilon,
    hidden: tl.constexpr,
    hidden_tile: tl.constexpr,
    adds: tl.constexpr,
) -> None:
    """Programs: [rows]."""
    row, index = tl.program_id(0).to(tl.int64), tl.arange(0, hidden_tile)
    inside = index < hidden
    stored = tl.load(residual + row * hidden + index, mask=inside, other=0.0)
    if adds:
        more = tl.load(added + row * hidden + index, mask=inside, other=0.0)
        stored = (stored.to(tl.float32) + more.to(tl.float32)).to(stored.dtype)
        tl.store(residual + row * hidden + index, stored, mask=inside)
    values = stored.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / hidden + epsilon)
    scaled = values * scale * tl.load(weight + index, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + index, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gated_kernel(gate_up, out, intermediate: tl.constexpr, tile: tl.constexpr) -> None:
    """Programs: [rows, tiles of columns]."""
    row, index = tl.program_id(0).to(tl.int64), tl.program_id(1) * tile + tl.arange(0, tile)
    inside = index < intermediate
    gate = tl.load(gate_up + row * 2 * intermediate + index, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * intermediate + index, mask=inside, other=0.0).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * intermediate + index, product.to(out.dtype.element_ty), mask=inside)
