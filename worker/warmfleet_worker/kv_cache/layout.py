"""Position of each key and value in the KV arena. Arithmetic only: no torch, no memory.

One block is one contiguous region across all layers, so that moving a block is one copy:

    block | layer | K then V | KV head | token | head dimension

Every backend reads the strides from here and none assumes that they are packed. PyTorch and Triton have a
head's tokens in this order. The native step has one of its own within what a block has of a head, 16 tokens
at a time (native/csrc/pairs.inc), and no use for `token_stride_bytes`.
"""

from dataclasses import dataclass
from typing import Final

KEYS_AND_VALUES: Final = 2


@dataclass(frozen=True, slots=True)
class KvShape:
    """Size of one token's keys and values: a key and a value vector per layer and KV head."""

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Exactly 2 x layers x KV heads x head dimension x element size."""
        return KEYS_AND_VALUES * self.layers * self.kv_heads * self.head_dim * self.element_bytes


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Offsets and strides within the KV arena, in bytes."""

    shape: KvShape
    block_size_tokens: int
    block_stride_bytes: int
    """From one block's region to the next; the memory of one block."""
    layer_stride_bytes: int
    value_stride_bytes: int
    """From a key to the value of the same token."""
    head_stride_bytes: int
    token_stride_bytes: int

    def layer_offset_bytes(self, layer: int) -> int:
        """Offset of a layer's first key within its block."""
        return layer * self.layer_stride_bytes

    def blocks_in(self, arena_bytes: int) -> int:
        """How many whole blocks `arena_bytes` holds."""
        return arena_bytes // self.block_stride_bytes


def kv_layout(
    shape: KvShape,
    block_size_tokens: int,
    *,
    head_padding_bytes: int = 0,
    layer_padding_bytes: int = 0,
    block_padding_bytes: int = 0,
) -> KvLayout:
    """Lay out a block head-major; without padding it is packed. Padding follows each head, layer or block."""
    token_stride = shape.head_dim * shape.element_bytes
    head_stride = block_size_tokens * token_stride + head_padding_bytes
    value_stride = shape.kv_heads * head_stride
    layer_stride = KEYS_AND_VALUES * value_stride + layer_padding_bytes
    return KvLayout(
        shape=shape,
        block_size_tokens=block_size_tokens,
        block_stride_bytes=shape.layers * layer_stride + block_padding_bytes,
        layer_stride_bytes=layer_stride,
        value_stride_bytes=value_stride,
        head_stride_bytes=head_stride,
        token_stride_bytes=token_stride,
    )
