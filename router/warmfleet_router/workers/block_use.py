"""How often a block was asked for lately, counted in four bits.

A level of n stands for 2**n - 1 uses. A use raises the level by one with probability 2**-n, and a halving
keeps it with that probability and else lowers it by one: both are right on average (Morris, Counting large
numbers of events in small registers, 1978). Counts are halved every `HALVING_SECONDS`, so that of a steady
rate they hold one and a half times what comes in between, on average.

The draws are a sequence that fills the unit interval evenly (multiples of the golden ratio): the same calls
give the same levels in every process.
"""

from typing import Final

from warmfleet_router.workers.holder_sets import HIGHEST_LEVEL

HALVING_SECONDS: Final = 120.0

_BITS: Final = 32
_STEP: Final = 0x9E3779B9
"""2**32 divided by the golden ratio."""


def uses(level: int) -> int:
    """The number of uses that a level stands for."""
    return (1 << level) - 1


def uses_per_second(count: float) -> float:
    """The steady rate that leaves so many uses counted, on average over the time between two halvings."""
    return count / (1.5 * HALVING_SECONDS)


class UseDraws:
    """Decides for each level whether a use raises it and whether a halving keeps it."""

    def __init__(self) -> None:
        self._draw = 0

    def raised(self, level: int) -> int:
        """The level after one more use."""
        return level + 1 if level < HIGHEST_LEVEL and self._is_drawn(level) else level

    def halved(self, level: int) -> int:
        """The level after a halving."""
        return level if level == 0 or self._is_drawn(level) else level - 1

    def _is_drawn(self, level: int) -> bool:
        self._draw = (self._draw + _STEP) & ((1 << _BITS) - 1)
        return self._draw < 1 << _BITS - level
