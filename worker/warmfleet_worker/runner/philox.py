"""Philox4x32-10, a counter-based random generator, over torch integers.

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", doi:10.1145/2063384.2063405.
"""

from typing import Final

from torch import Tensor

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10
_WORD: Final = 0xFFFFFFFF

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox_4x32(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Four random 32-bit words per counter and key.

    All tensors are int64 that hold unsigned 32-bit words, and broadcast against each other.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 = (k0 + _KEY_STEPS[0]) & _WORD
        k1 = (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def _multiply(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """High and low word of a 32 x 32 bit product; int64 wraps around, its bits are the right ones."""
    product = word * multiplier
    return (product >> 32) & _WORD, product & _WORD
