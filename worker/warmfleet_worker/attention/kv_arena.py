"""The memory of all keys and values: one buffer, allocated at start."""

from collections.abc import Sequence

import torch
from torch import Tensor

from warmfleet_worker.kv_cache.layout import KEYS_AND_VALUES, KvLayout


class KvArena:
    """Memory of `total_blocks` blocks in the given `layout`, plus one block of zeros after them.

    The zero block pads block tables of unequal length: it is finite, never written and never allocated.

        layout = kv_layout(KvShape(layers=32, kv_heads=8, head_dim=128, element_bytes=2), 16)
        arena = KvArena(layout, total_blocks=1024, dtype=torch.bfloat16, device=torch.device("cpu"))
        keys, values = arena.layer(0)[block_id]  # each [kv_heads, block size, head_dim]
    """

    def __init__(
        self,
        layout: KvLayout,
        total_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        poison: bool = False,
    ) -> None:
        """Allocate it."""
        assert dtype.itemsize == layout.shape.element_bytes, (dtype, layout)
        self.layout = layout
        self.total_blocks = total_blocks
        self.zero_block = total_blocks
        stride = layout.block_stride_bytes // dtype.itemsize
        # Written, not only mapped: the pages are faulted in now and not in the middle of a request.
        self.storage = torch.empty((total_blocks + 1) * stride, dtype=dtype, device=device).zero_()
        self._regions = self.storage.view(total_blocks + 1, stride)
        if poison:
            self.poison_blocks(range(total_blocks))

    def layer(self, layer: int) -> Tensor:
        """Keys and values of one layer, a view: [blocks + 1, 2, kv_heads, block size, head_dim]."""
        layout, shape = self.layout, self.layout.shape
        strides = (
            layout.block_stride_bytes,
            layout.value_stride_bytes,
            layout.head_stride_bytes,
            layout.token_stride_bytes,
            shape.element_bytes,
        )
        return self.storage.as_strided(
            (
                self.total_blocks + 1,
                KEYS_AND_VALUES,
                shape.kv_heads,
                layout.block_size_tokens,
                shape.head_dim,
            ),
            tuple(stride // shape.element_bytes for stride in strides),
            layout.layer_offset_bytes(layer) // shape.element_bytes,
        )

    def block_bytes(self, block_id: int) -> bytes:
        """Keys and values of one block, layer by layer, without padding."""
        layers = [self.layer(layer)[block_id] for layer in range(self.layout.shape.layers)]
        return torch.stack(layers).cpu().view(torch.uint8).numpy().tobytes()

    def poison_blocks(self, block_ids: Sequence[int]) -> None:
        """Fill blocks with NaN, so that a read of unwritten slots is noticed."""
        assert self.zero_block not in block_ids
        self._regions[list(block_ids)] = float("nan")
