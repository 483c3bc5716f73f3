"""How far each pair of a head is turned at a position (Su et al. 2021, arXiv:2104.09864). No torch."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from warmfleet_worker.model.config import Llama3Scaling, ModelConfig

_SLICE_POSITIONS: Final = 4096
"""Computed at a time: the float64 of a long table would be larger than a small model."""


def rotary_table(config: ModelConfig, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines, each [positions, head_dim / 2].

    Angles are rounded to float32, as transformers does; their cosines are those of float64, rounded, and so
    the same on every processor.
    """
    frequencies = rotary_frequencies(config)
    cosine = np.empty((positions, frequencies.size), np.float32)
    sine = np.empty_like(cosine)
    for first in range(0, positions, _SLICE_POSITIONS):
        part = slice(first, min(first + _SLICE_POSITIONS, positions))
        angles = np.outer(np.arange(part.start, part.stop, dtype=np.float32), frequencies).astype(np.float64)
        cosine[part], sine[part] = np.cos(angles), np.sin(angles)
    return cosine, sine


def rotary_frequencies(config: ModelConfig) -> NDArray[np.float32]:
    """Radians per position of each pair, [head_dim / 2]."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    # A power in float32 differs in its last bit between processors.
    wavelengths = (np.float64(config.rope_theta) ** exponents.astype(np.float64)).astype(np.float32)
    frequencies = np.float32(1.0) / wavelengths
    return frequencies if config.rope_scaling is None else _stretch(frequencies, config.rope_scaling)


def _stretch(frequencies: NDArray[np.float32], scaling: Llama3Scaling) -> NDArray[np.float32]:
    """Llama 3.1: long waves are slowed by `factor`, short ones kept, those between blended linearly."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    kept_share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept_share = kept_share.clip(0.0, 1.0)
    stretched = frequencies * kept_share + (frequencies / scaling.factor) * (1.0 - kept_share)
    return stretched.astype(np.float32)
