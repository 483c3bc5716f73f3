"""From token ids to text, token by token; text that may still change is held back.

Two things are held back: bytes of a character that is not complete, and text that may be the beginning
of a stop string. For every split into tokens, the pieces joined are the text of the whole.
"""

from collections.abc import Sequence

import tokenizers
from tokenizers.decoders import DecodeStream


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
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._matcher = StopMatcher(stops)
        self._min_tokens = min_tokens
        self._token_ids: list[int] = []
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
        if self.stopped:
            return ""
        self._token_ids.append(token_id)
        piece = self._stream.step(self._tokenizer, token_id)
        if not piece:
            return ""
        self._decoded_chars += len(piece)
        return self._match(piece)

    def finish(self) -> str:
        """What is left when no more tokens come, an incomplete character as U+FFFD."""
        if self.stopped:
            return ""
        whole = self._tokenizer.decode(self._token_ids, skip_special_tokens=True)
        return self._match(whole[self._decoded_chars :]) + self._matcher.finish()

    def _match(self, text: str) -> str:
        return text if len(self._token_ids) <= self._min_tokens else self._matcher.push(text)


def _possible_start(text: str, stop: str) -> int:
    """Where the longest end of `text` begins that `stop` begins with; len(text) if there is none."""
    start = text.find(stop[0], max(len(text) - len(stop) + 1, 0))
    while start >= 0:
        if stop.startswith(text[start:]):
            return start
        start = text.find(stop[0], start + 1)
    return len(text)
