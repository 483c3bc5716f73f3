"""Lengths of prompts and answers."""

import math
import random
from typing import Final

LONGEST_OF_MEAN: Final = 16
"""No length is more than so many times the mean; with variation 1 one in 10,000 would be."""


class Lengths:
    """Lognormal lengths in tokens: many short ones and a few long ones, as in recorded traffic."""

    def __init__(self, mean_tokens: int, variation: float, draw: random.Random) -> None:
        """`variation` is the standard deviation as a multiple of the mean."""
        variance = math.log1p(variation * variation)
        self._mu = math.log(mean_tokens) - variance / 2
        self._sigma = math.sqrt(variance)
        self._longest = mean_tokens * LONGEST_OF_MEAN
        self._draw = draw

    def next(self) -> int:
        """One more length, at least 1."""
        length = round(self._draw.lognormvariate(self._mu, self._sigma))
        return min(max(length, 1), self._longest)
