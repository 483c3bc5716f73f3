"""What a router's record of a decision keeps of its prompt: enough to see which prompts share a prefix.

All hashes of a prompt would take a hundred kilobytes. Kept are the first bytes of some of them: of each of
the first 64 blocks, and from there on of 32 blocks per doubling of the length. Prompts with the same bytes at
the same place are equal up to it, so a shared prefix is known within a thirty-second of its length. The
hashes are salted (`tenant_salt`): tenants that share no cache share no prefix here, and no text follows from
them.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from warmfleet_contracts.cache.blocks import BlockHash

MARK_BYTES: Final = 4
"""Of one block's hash."""
MOST_MARKS: Final = 512
"""2 KiB, for a million blocks."""
_EVERY_BLOCK: Final = 64


class RecordedPrefix(msgspec.Struct, frozen=True, array_like=True):
    """A prompt by some of its block hashes."""

    block_size_tokens: int
    marks: bytes
    """`MARK_BYTES` of the hash of each of `marked_blocks`."""

    @classmethod
    def of(cls, hashes: Sequence[BlockHash], block_size_tokens: int) -> "RecordedPrefix":
        """What is kept of a prompt whose full blocks have `hashes`."""
        marked = (hashes[number - 1][:MARK_BYTES] for number in marked_blocks(len(hashes)))
        return cls(block_size_tokens, b"".join(marked))


def marked_blocks(blocks: int) -> Iterator[int]:
    """Which of a prompt's full blocks have a mark, as numbers from 1, in order."""
    number, step = 0, 1
    for _ in range(MOST_MARKS):
        if number >= _EVERY_BLOCK * step:
            step *= 2
        number += step
        if number > blocks:
            return
        yield number
