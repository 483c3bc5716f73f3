"""Rotary position embeddings (Su et al. 2021, arXiv:2104.09864), with Llama 3.1's frequency scaling.

Pairs are (i, i + head_dim / 2), as in every Hugging Face checkpoint of the families served here.
The native step has its table in `rotary_frequencies` and its rotation in native/csrc/rows.inc; Triton's is in
`gpu.kernels`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.rotary_frequencies import rotary_frequencies


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and signed sines of some tokens, shaped [tokens, 1, head_dim] to broadcast over heads."""

    cosine: Tensor
    signed_sine: Tensor
    """The first half is negated: x * cos + roll(x) * signed_sine rotates each pair."""

    def apply_(self, heads: Tensor) -> None:
        """Rotate `heads`, [tokens, heads, head_dim], to their positions, in place."""
        rolled = heads.roll(heads.shape[-1] // 2, -1)
        torch.addcmul(heads * self.cosine, rolled, self.signed_sine, out=heads)


class RotaryTable:
    """Rotations of all positions up to a limit, computed once in float32 as transformers does.

    `cosine` and `signed_sine` are [positions, 1, head_dim], as a `Rotation` has them of some.
    """

    def __init__(self, config: ModelConfig, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        precision = torch.float64 if dtype == torch.float64 else torch.float32
        frequencies = torch.from_numpy(rotary_frequencies(config)).to(precision)
        angles = torch.outer(torch.arange(positions, dtype=precision), frequencies)
        cosine, sine = angles.cos(), angles.sin()
        self.cosine = torch.cat((cosine, cosine), -1).unsqueeze(1).to(device, dtype)
        self.signed_sine = torch.cat((-sine, sine), -1).unsqueeze(1).to(device, dtype)

    def at(self, positions: Tensor) -> Rotation:
        """The rotations of `positions`, [tokens] of int64."""
        return Rotation(self.cosine.index_select(0, positions), self.signed_sine.index_select(0, positions))
