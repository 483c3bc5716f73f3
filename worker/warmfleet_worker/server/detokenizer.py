"""From token ids to text, token by token; text that may still change is held back.

Two things are held back: bytes of a character that is not complete, and text that may be the beginning
of a stop string. For every split into tokens, the pieces joined are the text of the whole.

A token costs the same however many came before it, and no sequence of ids raises. tokenizers' own
`DecodeStream` does neither: it decodes everything since its last text again, and raises when text that it
has given changes.
"""

import codecs
from collections.abc import Sequence
from typing import Final, Protocol

import tokenizers

from warmfleet_worker.server.token_texts import (
    ByteLevelRule,
    PiecewiseRule,
    TokenPieces,
    WindowRule,
    text_rule,
)

_REPLACEMENT: Final = "\ufffd"
_WINDOW_TOKENS: Final = 4
"""As many byte tokens as a character has bytes at most."""


class StopMatcher:
    """Passes text through up to the stop string that is complete first, for every split into pieces.

    Of two that are complete at the same character the longer one counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The part of everything so far that can be sent now."""
        if not self._stops:
            return text
        if self.stopped:
            return ""
        pending = self._held + text
        found = [(start + len(stop), start) for stop in self._stops if (start := pending.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return pending[: min(found)[1]]
        cut = min(_possible_start(pending, stop) for stop in self._stops)
        self._held = pending[cut:]
        return pending[:cut]

    def finish(self) -> str:
        """What was held back and turned out to be ordinary text."""
        held, self._held = self._held, ""
        return held


class Detokenizer:
    """Text of one sequence of token ids, control tokens left out."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, stops: Sequence[str] = (), *, min_tokens: int = 0
    ) -> None:
        """Stop strings count from the text of the token after the first `min_tokens` on."""
        self._text = _text_of(tokenizer)
        self._matcher = StopMatcher(stops)
        self._min_tokens = min_tokens
        self._tokens = 0
        self._decoded_chars = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._matcher.stopped

    @property
    def decoded_chars(self) -> int:
        """Characters that are complete so far, those held back included."""
        return self._decoded_chars

    def push(self, token_id: int) -> str:
        """Text that is certain now that `token_id` has come; often empty."""
        if self._matcher.stopped:
            return ""
        self._tokens += 1
        piece = self._text.push(token_id)
        if not piece:
            return ""
        self._decoded_chars += len(piece)
        return self._match(piece)

    def finish(self) -> str:
        """What is left when no more tokens come, an incomplete character as U+FFFD."""
        if self._matcher.stopped:
            return ""
        return self._match(self._text.finish()) + self._matcher.finish()

    def _match(self, text: str) -> str:
        return text if self._tokens <= self._min_tokens else self._matcher.push(text)


class _Text(Protocol):
    """A text that grows by a token at a time."""

    def push(self, token_id: int) -> str:
        """The characters that are complete with it."""

    def finish(self) -> str:
        """What is left, as U+FFFD if it is no character."""


def _text_of(tokenizer: tokenizers.Tokenizer) -> _Text:
    rule = text_rule(tokenizer)
    match rule:
        case ByteLevelRule():
            return _ByteLevelText(rule)
        case PiecewiseRule():
            return _PiecewiseText(rule)
        case WindowRule():
            return _WindowText(tokenizer, rule)


class _ByteLevelText:
    """The bytes of all tokens in a row; what is no UTF-8 in them becomes U+FFFD as the tokenizer does it."""

    def __init__(self, rule: ByteLevelRule) -> None:
        self._pieces = rule.pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_whole = True
        """No byte waits for the rest of its character."""

    def push(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if self._is_whole and type(piece) is str:
            return piece
        if not piece:
            return ""
        text = self._decoder.decode(piece.encode() if isinstance(piece, str) else piece)
        self._is_whole = not self._decoder.getstate()[0]
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _PiecewiseText:
    """The texts of all tokens in a row.

    Byte tokens that stand together are a run. If not all of a run is UTF-8, the tokenizer makes every byte
    of it U+FFFD, whole characters before the fault included. These have been sent by then, so they stay,
    as in SentencePiece; the other bytes of the run are the tokenizer's U+FFFD. To hold each run back until
    it ends would stop a stream for a whole sentence in languages that a vocabulary spells byte by byte.
    """

    def __init__(self, rule: PiecewiseRule) -> None:
        self._pieces: TokenPieces = rule.first
        self._later = rule.later
        self._strip = rule.stripped
        self._strip_chars = rule.stripped_chars
        self._held = b""
        self._is_bad_run = False

    def push(self, token_id: int) -> str:
        piece = self._pieces[token_id]
        if piece is None:
            return ""
        self._pieces = self._later
        if isinstance(piece, bytes):
            piece = self._add_byte(piece)
        else:
            self._is_bad_run = False
            if self._held:
                piece = self.finish() + piece
        return self._stripped(piece) if self._strip_chars else piece

    def finish(self) -> str:
        held, self._held = self._held, b""
        return _REPLACEMENT * len(held)

    def _add_byte(self, byte: bytes) -> str:
        self._held += byte
        if self._is_bad_run:
            return self.finish()
        try:
            text, decoded = codecs.utf_8_decode(self._held, "strict", False)
        except UnicodeDecodeError:
            self._is_bad_run = True
            return self.finish()
        if decoded:
            self._held = b""
        return text

    def _stripped(self, text: str) -> str:
        """`text` without those characters at the start of the whole that the decoder removes."""
        removed = 0
        while removed < self._strip_chars and text.startswith(self._strip, removed):
            removed += 1
        text = text[removed:]
        self._strip_chars = 0 if text else self._strip_chars - removed
        return text


class _WindowText:
    """Each token decoded behind the few before it; good for decoders that look no further than that.

    Tokens wait together while their text ends in U+FFFD. Those whose text is known only show the decoder
    what stands before the others.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, rule: WindowRule) -> None:
        self._tokenizer = tokenizer
        self._pieces = rule.pieces
        self._known: list[int] = []
        self._waiting: list[int] = []

    def push(self, token_id: int) -> str:
        if self._pieces[token_id] is None:
            return ""
        self._waiting.append(token_id)
        text = self._text_of_waiting()
        if text.endswith(_REPLACEMENT) and len(self._waiting) < _WINDOW_TOKENS:
            return ""
        if text:
            self._known = self._waiting
        elif len(self._known) + len(self._waiting) <= _WINDOW_TOKENS:
            self._known = self._known + self._waiting
        self._waiting = []
        return text

    def finish(self) -> str:
        return self._text_of_waiting() if self._waiting else ""

    def _text_of_waiting(self) -> str:
        before = self._decode(self._known)
        whole = self._decode(self._known + self._waiting)
        # They may have changed the text before them, which is given already.
        return whole[len(before) :] if whole.startswith(before) else self._decode(self._waiting)

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=True) if token_ids else ""


def _possible_start(text: str, stop: str) -> int:
    """Where the longest end of `text` begins that `stop` begins with; len(text) if there is none."""
    start = text.find(stop[0], max(len(text) - len(stop) + 1, 0))
    while start >= 0:
        if stop.startswith(text[start:]):
            return start
        start = text.find(stop[0], start + 1)
    return len(text)
