"""Matrices of eight-bit weights: one scale for each 32 inputs of an output, as GGUF's Q8_0 has them."""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

BLOCK_INPUTS: Final = 32
_LARGEST: Final = 127
_SLICE_WEIGHTS: Final = 2**22
"""Rounded at a time: what that needs besides, some 14 bytes of each, is small beside any model."""


class NotQuantisable(ValueError):  # noqa: N818 - named after what is wrong
    """A weight is not finite, or too large for a scale in float16."""


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """[outputs, inputs]: a weight is its value times the scale of its block."""

    values: Tensor
    """int8, [outputs, inputs]."""
    scales: Tensor
    """float16, [outputs, blocks]; the last block may be shorter."""

    def __post_init__(self) -> None:
        if not bool(self.scales.isfinite().all()):
            raise NotQuantisable("a weight is not finite, or too large for Int8's scales")

    def dequantised(self) -> Tensor:
        """The weights in float32, exactly."""
        inputs = self.values.shape[1]
        return self.values * self.scales.float().repeat_interleave(BLOCK_INPUTS, dim=1)[:, :inputs]


def quantised(weights: Tensor) -> Int8Matrix:
    """Round each block to 127 steps on either side of 0.

    Values are rounded with the scale as it is stored, so that weights that came from such a matrix, with a
    value of 127 or -127 in each block as its usual writers leave one, become that matrix again. A block whose
    weights are all below 2e-6 or so becomes 0: float16 has no scale for it.

    Raises:
        NotQuantisable: A weight is not finite, or larger than 8.3 million.
    """
    outputs, inputs = weights.shape
    values = torch.empty((outputs, inputs), dtype=torch.int8)
    scales = torch.empty((outputs, -(-inputs // BLOCK_INPUTS)), dtype=torch.float16)
    rows = max(_SLICE_WEIGHTS // inputs, 1)
    for first in range(0, outputs, rows):
        part = slice(first, first + rows)
        values[part], scales[part] = _rounded(weights[part])
    return Int8Matrix(values, scales)


def _rounded(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Values and scales of some rows."""
    outputs, inputs = weights.shape
    padded = torch.nn.functional.pad(weights.float(), (0, -inputs % BLOCK_INPUTS))
    blocks = padded.view(outputs, -1, BLOCK_INPUTS)
    scales = (blocks.abs().amax(dim=2) / _LARGEST).to(torch.float16)
    steps = blocks / torch.where(scales == 0, torch.inf, scales.float())[..., None]
    # A scale that is not finite is refused with its matrix.
    values = steps.nan_to_num(0.0).round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8)
    return values.view(outputs, -1)[:, :inputs], scales


def stacked(matrices: list[Int8Matrix]) -> Int8Matrix:
    """Matrices of as many inputs below each other, as one."""
    if len(matrices) == 1:
        return matrices[0]
    return Int8Matrix(
        torch.cat([matrix.values for matrix in matrices]), torch.cat([matrix.scales for matrix in matrices])
    )
