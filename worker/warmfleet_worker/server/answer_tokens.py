"""Pairs the tokens of an answer with the text that they decode to."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import tokenizers

from warmfleet_worker.engine.logprobs import TokenLogprob, TokenLogprobs
from warmfleet_worker.server.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class AnswerToken:
    """One token of an answer."""

    token_id: int
    text_offset: int
    """Characters before its text. The tokens of one character share its offset."""
    score: TokenLogprob | None = None
    """None if log probabilities are not requested, and for the first token of an echoed prompt."""


class TokenQueue:
    """Holds tokens back while their text is: an incomplete character, or the start of a stop string."""

    def __init__(self) -> None:
        self._waiting: deque[AnswerToken] = deque()
        self._end: tuple[int, TokenLogprob | None] | None = None

    def push(self, token: AnswerToken) -> None:
        self._waiting.append(token)

    def push_end(self, token_id: int, score: TokenLogprob | None) -> None:
        """The last token, which ends the answer: it stands behind the text of all others."""
        self._end = token_id, score

    def take(self, sent_chars: int) -> list[AnswerToken]:
        """The tokens that begin within the first `sent_chars` characters of the answer."""
        taken = []
        while self._waiting and self._waiting[0].text_offset < sent_chars:
            taken.append(self._waiting.popleft())
        return taken

    def take_rest(self, sent_chars: int) -> list[AnswerToken]:
        """Tokens without text: control tokens, what a stop string cut off, and the end token."""
        rest = list(self._waiting)
        self._waiting.clear()
        if self._end is not None:
            token_id, score = self._end
            rest.append(AnswerToken(token_id, sent_chars, score))
        return rest


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """The prompt at the start of an answer, for `echo`; empty without."""

    text: str = ""
    token_ids: Sequence[int] = ()
    """The prompt's, if its log probabilities are requested."""
    text_offsets: Sequence[int] = ()
    """Of `token_ids`."""

    def tokens(self, scores: Sequence[TokenLogprobs]) -> Iterator[AnswerToken]:
        """The prompt's tokens; `scores` are of all but the first, which has no log probability."""
        given: list[TokenLogprob | None] = [None] if self.token_ids else []
        given += (score for part in scores for score in part)
        for token_id, offset, score in zip(self.token_ids, self.text_offsets, given, strict=True):
            yield AnswerToken(token_id, offset, score)


def text_offsets(tokenizer: tokenizers.Tokenizer, token_ids: Sequence[int], text: str) -> list[int]:
    """Characters of `text` before the text of each token."""
    detokenizer = Detokenizer(tokenizer)
    offsets = [0]
    for token_id in token_ids:
        offsets.append(offsets[-1] + len(detokenizer.push(token_id)))
    return [min(offset, len(text)) for offset, _ in pairwise(offsets)]
