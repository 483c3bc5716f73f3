"""The native step's memory of keys and values, as Python sees it."""

from collections.abc import Sequence
from mmap import PAGESIZE

import numpy as np

from warmfleet_worker.kv_cache.layout import KvLayout
from warmfleet_worker.model.checkpoint import AnyArray


class NativeArena:
    """Memory of `total_blocks` blocks, and of one of zeros after them; as `KvMemory`.

    arena = NativeArena(layout, total_blocks, region.view(region.address, arena_bytes, np.float32))
    """

    def __init__(
        self, layout: KvLayout, total_blocks: int, storage: AnyArray, *, poison: bool = False
    ) -> None:
        """Use `storage`, zeroed memory of (total_blocks + 1) blocks."""
        assert storage.itemsize == layout.shape.element_bytes, (storage.dtype, layout)
        self.layout = layout
        self.total_blocks = total_blocks
        # Each page is faulted in now, and zeroed by the system, and not in the middle of a request.
        storage[:: PAGESIZE // storage.itemsize] = 0
        self.storage = storage
        self._blocks = storage.reshape(total_blocks + 1, layout.block_stride_bytes // storage.itemsize)
        if poison:
            self.poison_blocks(range(total_blocks))

    def block_bytes(self, block_id: int) -> bytes:
        """As `KvMemory.block_bytes`; this layout has no padding."""
        block: bytes = self._blocks[block_id].tobytes()
        return block

    def poison_blocks(self, block_ids: Sequence[int]) -> None:
        """As `KvMemory.poison_blocks`."""
        assert self.total_blocks not in block_ids
        self._blocks[list(block_ids)] = np.nan
