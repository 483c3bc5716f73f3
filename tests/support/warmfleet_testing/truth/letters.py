"""Text in which every letter and space is one token of the tiny tokenizer.

Letters that its merges join are left out, so text that is put together from pieces has as many tokens as its
pieces together, wherever they meet.
"""

import functools
import random
from typing import Final

from warmfleet_testing.engine.tiny_tokenizer import TINY_MERGES, tiny_tokenizer

_MERGED: Final = {letter for pair in TINY_MERGES for part in pair for letter in part}
_LETTERS: Final = "".join(letter for letter in "abcdefghijklmnopqrstuvwxyz    " if letter not in _MERGED)
_SPACE: Final = "\u0120"
"""In a vocabulary of byte letters."""


def drawn_text(draw: random.Random, tokens: int) -> str:
    """A text of so many tokens."""
    return "".join(draw.choices(_LETTERS, k=tokens))


def token_ids_of(text: str) -> list[int]:
    """The ids of such a text's tokens."""
    return [*map(_ids().__getitem__, text)]


@functools.cache
def _ids() -> dict[str, int]:
    vocabulary: dict[str, int] = tiny_tokenizer()["model"]["vocab"]
    return {letter: vocabulary[_SPACE if letter == " " else letter] for letter in _LETTERS}
