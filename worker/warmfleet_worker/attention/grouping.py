"""Which decodes share a padded batch. Pure: no torch."""

from collections.abc import Sequence
from typing import Final

FREE_PADDING_TOKENS: Final = 1024
"""Padding that costs less than another call per layer would."""


def group_by_length(lengths_tokens: Sequence[int], capacity_tokens: int) -> list[list[int]]:
    """Partition indices into groups padded to their longest member.

    A group's padded size stays within `capacity_tokens` (a longer single is a group of its own), and
    its padding within its real tokens or `FREE_PADDING_TOKENS`, whichever is more. Within a group
    indices ascend.
    """
    groups: list[list[int]] = []
    longest = real = 0
    for index in sorted(range(len(lengths_tokens)), key=lambda index: -lengths_tokens[index]):
        length = lengths_tokens[index]
        padded = longest * (len(groups[-1]) + 1) if groups else 0
        fits = padded <= capacity_tokens and padded - real - length <= max(real + length, FREE_PADDING_TOKENS)
        if groups and fits:
            groups[-1].append(index)
            real += length
        else:
            groups.append([index])
            longest = real = length
    return [sorted(group) for group in groups]
