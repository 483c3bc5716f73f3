"""Which workers hold one block, and how often it was asked for lately, as one integer: an entry.

    positive   bits 0 to 3: the level of its use (`block_use`); above them the slots of up to `LISTED`
               holders, each plus one, in `SLOT_BITS` bits, in the order in which they joined
    negative   of more holders: -(mask of their slots << 4 | level)

A worker's slot is its number in the index (`slots`). A mask of a thousand slots takes 160 bytes, which only
blocks with the same holders share; a list takes 16 bytes or less per further holder even where each block has
others. An entry without holders is 0, and its block is not kept.
"""

from collections.abc import Iterator
from typing import Final

LEVEL_BITS: Final = 4
HIGHEST_LEVEL: Final = (1 << LEVEL_BITS) - 1
SLOT_BITS: Final = 14
MAX_SLOTS: Final = (1 << SLOT_BITS) - 1
LISTED: Final = 10
"""Holders from which on a mask is shorter than a list, in a fleet of a thousand."""

_FIELD: Final = (1 << SLOT_BITS) - 1
_FIRST_HOLDER_BITS: Final = LEVEL_BITS + SLOT_BITS


def holders(entry: int) -> int:
    """Mask of the slots that hold the block."""
    if entry < 0:
        return -entry >> LEVEL_BITS
    mask, fields = 0, entry >> LEVEL_BITS
    while fields:
        mask |= 1 << (fields & _FIELD) - 1
        fields >>= SLOT_BITS
    return mask


def holds(entry: int, slot: int) -> bool:
    """Whether `slot` holds the block."""
    if entry < 0:
        return bool(-entry >> LEVEL_BITS + slot & 1)
    fields = entry >> LEVEL_BITS
    while fields:
        if fields & _FIELD == slot + 1:
            return True
        fields >>= SLOT_BITS
    return False


def only_holder(entry: int) -> int | None:
    """The slot that holds the block alone; None if there are others."""
    return (entry >> LEVEL_BITS) - 1 if 0 < entry >> LEVEL_BITS <= _FIELD else None


def is_worth_sharing(entry: int) -> bool:
    """Whether it is a mask, or of so few holders that an object of its own is more than 16 bytes for each."""
    return entry < 1 << _FIRST_HOLDER_BITS + SLOT_BITS


def joined(entry: int, slot: int) -> int:
    """The entry after `slot`, which does not hold the block, stored it."""
    if entry < 0:
        return -(-entry | 1 << slot + LEVEL_BITS)
    listed = (entry.bit_length() + SLOT_BITS - LEVEL_BITS - 1) // SLOT_BITS
    if listed == LISTED:
        return _entry(holders(entry) | 1 << slot, level(entry))
    if listed == 1 and slot + 1 < entry >> LEVEL_BITS:
        # Most shared blocks have two holders, so that it pays that these are always written alike.
        return entry >> LEVEL_BITS << _FIRST_HOLDER_BITS | slot + 1 << LEVEL_BITS | level(entry)
    return entry | slot + 1 << LEVEL_BITS + SLOT_BITS * listed


def without(entry: int, gone: int) -> int:
    """The entry without the slots of the mask `gone`; 0 if no other slot holds the block."""
    if entry < 0:
        mask = holders(entry)
        left = mask & ~gone
        return entry if left == mask else _entry(left, level(entry)) if left else 0
    left, shift, fields = level(entry), LEVEL_BITS, entry >> LEVEL_BITS
    while fields:
        field = fields & _FIELD
        if not gone >> field - 1 & 1:
            left |= field << shift
            shift += SLOT_BITS
        fields >>= SLOT_BITS
    return left if shift > LEVEL_BITS else 0


def level(entry: int) -> int:
    """The level of the block's use."""
    return abs(entry) & HIGHEST_LEVEL


def at_level(entry: int, new: int) -> int:
    """The entry with another level of use."""
    changed = abs(entry) & ~HIGHEST_LEVEL | new
    return -changed if entry < 0 else changed


def slots_of(mask: int) -> Iterator[int]:
    """The slots of a mask, in order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _entry(mask: int, level_of_use: int) -> int:
    if mask.bit_count() > LISTED:
        return -(mask << LEVEL_BITS | level_of_use)
    entry, shift = level_of_use, LEVEL_BITS
    for slot in slots_of(mask):
        entry |= slot + 1 << shift
        shift += SLOT_BITS
    return entry
