"""Rotary position embeddings (Su et al. 2021, arXiv:2104.09864), with Llama 3.1's frequency scaling.

Pairs are (i, i + head_dim / 2), as in every Hugging Face checkpoint of the families served here.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from warmfleet_worker.model.config import Llama3Scaling, ModelConfig


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
    """Rotations of all positions up to a limit, computed once in float32 as transformers does."""

    def __init__(self, config: ModelConfig, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        precision = torch.float64 if dtype == torch.float64 else torch.float32
        frequencies = rotary_frequencies(config).to(precision)
        angles = torch.outer(torch.arange(positions, dtype=precision), frequencies)
        cosine, sine = angles.cos(), angles.sin()
        self._cosine = torch.cat((cosine, cosine), -1).unsqueeze(1).to(device, dtype)
        self._signed_sine = torch.cat((-sine, sine), -1).unsqueeze(1).to(device, dtype)

    def at(self, positions: Tensor) -> Rotation:
        """The rotations of `positions`, [tokens] of int64."""
        return Rotation(self._cosine.index_select(0, positions), self._signed_sine.index_select(0, positions))


def rotary_frequencies(config: ModelConfig) -> Tensor:
    """Radians per position of each pair, [head_dim / 2] of float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    return frequencies if config.rope_scaling is None else _stretch(frequencies, config.rope_scaling)


def _stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Llama 3.1: long waves are slowed by `factor`, short ones kept, those between blended linearly."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    kept_share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept_share = kept_share.clamp(0.0, 1.0)
    return frequencies * kept_share + (frequencies / scaling.factor) * (1.0 - kept_share)
