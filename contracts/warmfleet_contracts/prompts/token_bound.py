"""A lower bound on the tokens of a text, found much faster than its tokens.

No token stands for more text than the longest in the vocabulary. White space is counted apart from the rest,
and so are the characters that a text has most of: vocabularies have tokens of 80 spaces or dashes, but none
with 80 letters.
"""

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any, Final

_PRINTED: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS: Final = tuple(byte for byte in range(0x100) if byte not in _PRINTED)
_BYTE_LETTERS: Final = {byte: chr(byte) for byte in _PRINTED} | {
    byte: chr(0x100 + place) for place, byte in enumerate(_OTHERS)
}
"""How byte-level vocabularies write each byte."""
_SPACES: Final = b" \t\n\r"
_SPACE_LETTERS: Final = frozenset(_BYTE_LETTERS[byte] for byte in _SPACES)
_COMPOSED_BYTES: Final = 3
"""NFC makes text at most so many times shorter: three letters of Hangul, nine bytes, become one of three."""
_SAMPLED_BYTES: Final = 4096
_COUNTED_BYTES: Final = 4
_KEEPING_STEPS: Final = ("Split", "Digits", "ByteLevel")


class TokenBound:
    """Of one byte-level BPE tokenizer. Immutable."""

    def __init__(self, vocabulary: Collection[str], literals: Iterable[str], *, composes: bool) -> None:
        """`composes`: text is brought to NFC first."""
        self._composes = composes
        # Bytes that occur in no valid text, most of them; the tokenizer drops them.
        self._absent = bytes(byte for byte, letter in _BYTE_LETTERS.items() if letter not in vocabulary)
        self._most_spaces = self._most_others = 1
        self._most: dict[str, int] = {}
        """How often a letter stands in one token, where that is more than once."""
        # Longest first: nearly all others have no more of anything than what is known then.
        for token in sorted(chain(vocabulary, map(_written, literals)), key=len, reverse=True):
            if len(token) > min(self._most_spaces, self._most_others):
                spaces = sum(map(_SPACE_LETTERS.__contains__, token))
                self._most_spaces = max(self._most_spaces, spaces)
                self._most_others = max(self._most_others, len(token) - spaces)
            letters = set(token)
            if len(letters) < len(token):
                for letter in letters:
                    count = token.count(letter)
                    if count > self._most.get(letter, 1):
                        self._most[letter] = count

    @classmethod
    def of(cls, description: dict[str, Any]) -> "TokenBound | None":
        """Of a tokenizer.json's content; None for a tokenizer that may drop or shorten text otherwise."""
        model, tokens = description["model"], description.get("added_tokens") or []
        steps = description.get("pre_tokenizer") or {}
        steps = steps["pretokenizers"] if steps.get("type") == "Sequence" else [steps]
        normalizer = description.get("normalizer")
        keeps_text = (
            model.get("type") == "BPE"
            and isinstance(model["vocab"], dict)
            and not model.get("continuing_subword_prefix")
            and not model.get("end_of_word_suffix")
            and normalizer in (None, {"type": "NFC"})
            and steps[-1].get("type") == "ByteLevel"
            and all(step["type"] in _KEEPING_STEPS and step.get("behavior") != "Removed" for step in steps)
            and not any(token["lstrip"] or token["rstrip"] for token in tokens)
        )
        if not keeps_text:
            return None
        literals = (token["content"] for token in tokens)
        return cls(model["vocab"], literals, composes=normalizer is not None)

    def least_tokens(self, text: str) -> int:
        """No encoding of `text` has fewer tokens."""
        encoded = text.encode("utf-8", "replace").translate(None, self._absent)
        others = len(encoded.translate(None, _SPACES))
        spaces = len(encoded) - others
        if self._composes and not unicodedata.is_normalized("NFC", text):
            return max(spaces // self._most_spaces, others // _COMPOSED_BYTES // self._most_others)
        sample = Counter(encoded[:: len(encoded) // _SAMPLED_BYTES + 1])
        by_byte = (
            encoded.count(byte) // self._most.get(_BYTE_LETTERS[byte], 1)
            for byte, _ in sample.most_common(_COUNTED_BYTES)
        )
        return max(spaces // self._most_spaces, others // self._most_others, *by_byte)


def _written(literal: str) -> str:
    return "".join(map(_BYTE_LETTERS.__getitem__, literal.encode("utf-8", "replace")))
