"""Matrices of eight-bit weights: one scale for each 32 inputs of an output, as GGUF's Q8_0 has them."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BLOCK_INPUTS: Final = 32
_LARGEST: Final = 127


class NotQuantisable(ValueError):  # noqa: N818 - named after what is wrong
    """A weight is not finite, or too large for a scale in float16."""


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """[outputs, inputs]: a weight is its value times the scale of its block."""

    values: NDArray[np.int8]
    """[outputs, inputs]."""
    scales: NDArray[np.float16]
    """[outputs, blocks]; the last block may be shorter."""

    def __post_init__(self) -> None:
        if not np.isfinite(self.scales).all():
            raise NotQuantisable("a weight is not finite, or too large for Int8's scales")


def quantised(weights: NDArray[Any]) -> Int8Matrix:
    """Round each block to 127 steps on either side of 0.

    Values are rounded with the scale as it is stored, so that weights that came from such a matrix, with a
    value of 127 or -127 in each block as its usual writers leave one, become that matrix again. A block whose
    weights are all below 2e-6 or so becomes 0: float16 has no scale for it.

    It takes some 14 bytes of each weight besides.

    Raises:
        NotQuantisable: A weight is not finite, or larger than 8.3 million.
    """
    outputs, inputs = weights.shape
    padded = np.pad(weights.astype(np.float32), ((0, 0), (0, -inputs % BLOCK_INPUTS)))
    blocks = padded.reshape(outputs, -1, BLOCK_INPUTS)
    # A scale that is not finite is refused with its matrix.
    with np.errstate(over="ignore", invalid="ignore"):
        scales = (np.abs(blocks).max(axis=2) / np.float32(_LARGEST)).astype(np.float16)
        divisors = np.where(scales == 0, np.float32(np.inf), scales.astype(np.float32))
        steps = np.nan_to_num(blocks / divisors[..., None], nan=0.0)
    values = np.rint(steps).clip(-_LARGEST, _LARGEST).astype(np.int8)
    return Int8Matrix(np.ascontiguousarray(values.reshape(outputs, -1)[:, :inputs]), scales)
