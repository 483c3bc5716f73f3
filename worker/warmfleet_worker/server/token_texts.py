"""Exact bytes of single tokens, and a text to display them."""

import json
import re
from typing import Any, Final, NamedTuple

import tokenizers

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRINTABLE: Final = frozenset((*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)))


class TokenText(NamedTuple):
    """Text and bytes of one token."""

    text: str
    """Its bytes as UTF-8, with U+FFFD for what is no whole character."""
    content: bytes
    """Exactly what it adds to an answer; a control token's is its name."""


class TokenTexts:
    """Texts of a tokenizer's tokens, each looked up once."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._steps = _decoder_steps(tokenizer)
        self._is_byte_level = any(step["type"] == "ByteLevel" for step in self._steps)
        self._added = frozenset(tokenizer.get_added_tokens_decoder())
        self._known: dict[int, TokenText] = {}

    def __getitem__(self, token_id: int) -> TokenText:
        """Of any id; one that the tokenizer does not know has no bytes."""
        known = self._known.get(token_id)
        if known is None:
            content = self._content(token_id)
            known = self._known[token_id] = TokenText(content.decode("utf-8", "replace"), content)
        return known

    def _content(self, token_id: int) -> bytes:
        piece: str | None = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if token_id in self._added:
            return piece.encode()
        if self._is_byte_level:
            return b"".join(
                bytes([BYTE_LETTERS[letter]]) if letter in BYTE_LETTERS else letter.encode()
                for letter in piece
            )
        return self._decoded(piece)

    def _decoded(self, piece: str) -> bytes:
        """`piece` through those steps of the decoder that look at one token alone."""
        for step in self._steps:
            match step:
                case {"type": "ByteFallback"} if found := _BYTE_TOKEN.fullmatch(piece):
                    return bytes.fromhex(found[1])
                case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                    piece = piece.replace(pattern, content)
                case {"type": "Metaspace", "replacement": replacement}:
                    piece = piece.replace(replacement, " ")
        return piece.encode()


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level vocabularies write bytes with.

    A printable byte is its own character; the others, in order, are those from U+0100 on (GPT-2's
    `bytes_to_unicode`).
    """
    letters = {chr(byte): byte for byte in _PRINTABLE}
    others = (byte for byte in range(256) if byte not in _PRINTABLE)
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


BYTE_LETTERS: Final = _byte_letters()


def _decoder_steps(tokenizer: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    """The tokenizer's decoder as the steps of its description; none without a decoder."""
    if tokenizer.decoder is None:
        return []
    description: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    steps: list[dict[str, Any]] = description.get("decoders", [description])
    return steps
