"""How many blocks a pool needs for so many sequences at once. Arithmetic only."""

import math
from typing import Final

from warmfleet_worker.kv_cache.block_table import blocks_for

WATERMARK_RATIO: Final = 0.01
"""Share of the pool that an admission leaves to the sequences that already run."""


def watermark_blocks(total_blocks: int) -> int:
    """Blocks of a pool of this size that an admission beside running sequences leaves free."""
    return math.ceil(WATERMARK_RATIO * total_blocks)


def blocks_for_sequences(sequences: int, context_tokens: int, block_size_tokens: int) -> int:
    """Blocks of the smallest pool in which so many sequences run at once, each at its full length.

    They share no prefix. A sequence's last token is sampled and never stored.

    Args:
        sequences: at least 1.
        context_tokens: prompt and answer of each together; at least 2.
        block_size_tokens: tokens per block.
    """
    used = sequences * blocks_for(context_tokens - 1, block_size_tokens)
    total = used
    while sequences > 1 and total - watermark_blocks(total) < used:
        total = used + watermark_blocks(total)
    return total
