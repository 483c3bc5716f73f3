"""Lengths of prompts, answers and pauses."""

import math
import random
from typing import Final

LONGEST_OF_MEAN: Final = 16
"""No length is more than so many times the mean; with variation 1 one in 10,000 would be."""


class Spread:
    """Lognormal numbers: many small ones and a few large ones, as in recorded traffic."""

    def __init__(self, mean: float, variation: float, draw: random.Random) -> None:
        """`variation` is the standard deviation as a multiple of the mean."""
        variance = math.log1p(variation * variation)
        self._mu = math.log(mean) - variance / 2
        self._sigma = math.sqrt(variance)
        self._largest = mean * LONGEST_OF_MEAN
        self._draw = draw

    def next(self) -> float:
        """One more number, above 0."""
        return min(self._draw.lognormvariate(self._mu, self._sigma), self._largest)


class Lengths:
    """The same in whole tokens, at least 1."""

    def __init__(self, mean_tokens: int, variation: float, draw: random.Random) -> None:
        self._spread = Spread(mean_tokens, variation, draw)

    def next(self) -> int:
        """One more length."""
        return max(round(self._spread.next()), 1)
