"""Exact bytes of single tokens, a text to display them, and what each adds to an answer."""

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import tokenizers
from tokenizers import decoders

_Step: TypeAlias = dict[str, Any]
"""Of a decoder, as tokenizer.json describes it."""
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
            return _spelled_bytes(piece)
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


class TokenPieces(dict[int, str | bytes | None]):
    """What each token adds to a text: whole characters as `str`, other bytes as `bytes`; found out once.

    None stands for a token that a text leaves out: a control token, or an id that the tokenizer does not
    know. It differs from "", which still is a token: it ends a run of byte tokens, for one.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, spell: Callable[[str], str | bytes]) -> None:
        """`spell` is from a token's name in the vocabulary to what it adds."""
        super().__init__()
        self._tokenizer = tokenizer
        self._spell = spell
        added = tokenizer.get_added_tokens_decoder().values()
        self._control_tokens = frozenset(token.content for token in added if token.special)

    def __missing__(self, token_id: int) -> str | bytes | None:
        name: str | None = self._tokenizer.id_to_token(token_id)
        left_out = name is None or name in self._control_tokens
        piece = self[token_id] = None if left_out else self._spell(name or "")
        return piece


class ByteLevelRule(NamedTuple):
    """The bytes of all tokens are one text."""

    pieces: TokenPieces


class PiecewiseRule(NamedTuple):
    """Each token adds its own text; byte tokens that stand together spell characters."""

    first: TokenPieces
    """If it is the first of the text."""
    later: TokenPieces
    """Behind other tokens."""
    stripped: str
    """A character that is removed where the whole text begins; may be empty."""
    stripped_chars: int
    """At most so often."""


class WindowRule(NamedTuple):
    """The tokenizer must see a token beside its neighbours; what it does with them is not known."""

    pieces: TokenPieces
    """None for the tokens that are left out."""


@lru_cache(maxsize=4)  # a worker serves one model
def text_rule(tokenizer: tokenizers.Tokenizer) -> ByteLevelRule | PiecewiseRule | WindowRule:
    """How the tokenizer's decoder makes a text of tokens. Kept: its decoder must not be replaced later."""
    steps = _decoder_steps(tokenizer)
    if [step["type"] for step in steps] in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        return ByteLevelRule(TokenPieces(tokenizer, _spelled_characters))
    on_tokens, on_whole = _parted(steps, "Fuse")
    on_names, on_characters = _parted(on_tokens, "ByteFallback")
    if on_characters or not all(map(_looks_at_one_token, on_names)) or not _is_start_strip(on_whole):
        return WindowRule(TokenPieces(tokenizer, str))
    decode = " ".join if tokenizer.decoder is None else _decoder_of(on_names).decode
    has_bytes = len(on_names) < len(on_tokens)
    return PiecewiseRule(
        first=TokenPieces(tokenizer, _Spelling(decode, [], has_bytes=has_bytes)),
        later=TokenPieces(tokenizer, _Spelling(decode, ["a"], has_bytes=has_bytes)),
        stripped=on_whole[0]["content"] if on_whole else "",
        stripped_chars=on_whole[0]["start"] if on_whole else 0,
    )


def _parted(steps: list[_Step], kind: str) -> tuple[list[_Step], list[_Step]]:
    """The steps before the first of the kind, and those behind it."""
    kinds = [step["type"] for step in steps]
    index = kinds.index(kind) if kind in kinds else len(kinds)
    return steps[:index], steps[index + 1 :]


def _looks_at_one_token(step: _Step) -> bool:
    """Whether a step of a decoder makes of a token the same text behind any other tokens."""
    return step["type"] in {"Replace", "Metaspace", "WordPiece"} or _is_start_strip([step])


def _is_start_strip(steps: list[_Step]) -> bool:
    """Whether the steps do nothing, or only remove characters at the start of what they get."""
    return not steps or [(step["type"], step.get("stop")) for step in steps] == [("Strip", 0)]


class _Spelling:
    """From a token's name to what it adds behind the tokens `before`."""

    def __init__(self, decode: Callable[[list[str]], str], before: list[str], *, has_bytes: bool) -> None:
        self._decode = decode
        self._before = before
        self._before_chars = len(decode(before))
        self._has_bytes = has_bytes

    def __call__(self, name: str) -> str | bytes:
        piece = self._decode([*self._before, name])[self._before_chars :]
        found = _BYTE_TOKEN.fullmatch(piece) if self._has_bytes else None
        return bytes.fromhex(found[1]) if found else piece


def _decoder_of(steps: list[_Step]) -> decoders.Decoder:
    decoder = decoders.Sequence([])
    decoder.__setstate__(json.dumps({"type": "Sequence", "decoders": steps}).encode())
    return decoder


def _spelled_bytes(name: str) -> bytes:
    """Of a token of a byte-level vocabulary; one with other letters stands for itself."""
    try:
        return bytes([BYTE_LETTERS[letter] for letter in name])
    except KeyError:
        return name.encode()


def _spelled_characters(name: str) -> str | bytes:
    """The same as characters if these are whole."""
    content = _spelled_bytes(name)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level vocabularies write bytes with.

    A printable byte is its own character; the others, in order, are those from U+0100 on (GPT-2's
    `bytes_to_unicode`).
    """
    letters = {chr(byte): byte for byte in _PRINTABLE}
    others = (byte for byte in range(256) if byte not in _PRINTABLE)
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


BYTE_LETTERS: Final = _byte_letters()


def _decoder_steps(tokenizer: tokenizers.Tokenizer) -> list[_Step]:
    """The tokenizer's decoder as the steps of its description; none without a decoder."""
    if tokenizer.decoder is None:
        return []
    description: _Step = json.loads(tokenizer.decoder.__getstate__())
    steps: list[_Step] = description.get("decoders", [description])
    return steps
