"""The arithmetic of the KV layout, against brute force."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from warmfleet_worker.kv_cache.layout import KEYS_AND_VALUES, KvLayout, KvShape, kv_layout

SHAPES = st.builds(
    KvShape,
    layers=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([2, 4]),
    element_bytes=st.sampled_from([1, 2, 4]),
)


def test_a_token_costs_exactly_its_keys_and_values():
    # SmolLM2-135M in bfloat16: 2 x 30 layers x 3 KV heads x 64 x 2 bytes.
    assert KvShape(layers=30, kv_heads=3, head_dim=64, element_bytes=2).bytes_per_token == 23_040


@given(shape=SHAPES, block_size_tokens=st.integers(1, 5))
def test_a_layout_without_padding_is_packed(shape, block_size_tokens):
    layout = kv_layout(shape, block_size_tokens)

    assert layout.block_stride_bytes == block_size_tokens * shape.bytes_per_token


@given(shape=SHAPES, block_size_tokens=st.integers(1, 4), padding=st.tuples(*[st.integers(0, 9)] * 3))
def test_no_two_vectors_overlap_and_none_leaves_its_block(shape, block_size_tokens, padding):
    # given
    head_padding, layer_padding, block_padding = padding
    layout = kv_layout(
        shape,
        block_size_tokens,
        head_padding_bytes=head_padding,
        layer_padding_bytes=layer_padding,
        block_padding_bytes=block_padding,
    )

    # when
    taken = [byte for block in range(2) for byte in _bytes_of_block(layout, block)]

    # then
    assert len(taken) == len(set(taken)) == 2 * block_size_tokens * shape.bytes_per_token
    first_block = taken[: len(taken) // 2]
    assert min(first_block) >= 0
    assert max(first_block) < layout.block_stride_bytes


def test_an_arena_holds_whole_blocks_only():
    layout = kv_layout(KvShape(layers=1, kv_heads=1, head_dim=2, element_bytes=4), 16)

    assert layout.block_stride_bytes == 256
    assert [layout.blocks_in(size) for size in (0, 255, 256, 511, 512)] == [0, 0, 1, 1, 2]


def _bytes_of_block(layout: KvLayout, block: int) -> list[int]:
    shape = layout.shape
    vector = shape.head_dim * shape.element_bytes
    starts = [
        block * layout.block_stride_bytes
        + layout.layer_offset_bytes(layer)
        + plane * layout.value_stride_bytes
        + head * layout.head_stride_bytes
        + token * layout.token_stride_bytes
        for layer, plane, head, token in itertools.product(
            range(shape.layers),
            range(KEYS_AND_VALUES),
            range(shape.kv_heads),
            range(layout.block_size_tokens),
        )
    ]
    return [byte for start in starts for byte in range(start, start + vector)]
