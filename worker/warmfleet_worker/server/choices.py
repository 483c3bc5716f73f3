"""The choices of an answer: tokens of one or more sequences become deltas of text, in order of arrival."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from typing import Final

import msgspec

from warmfleet_contracts.openai import RequestError
from warmfleet_worker.engine.logprobs import TokenLogprobs
from warmfleet_worker.metrics import WorkerMetrics
from warmfleet_worker.server.answer_tokens import AnswerToken, EchoedPrompt, TokenQueue
from warmfleet_worker.server.detokenizer import Detokenizer
from warmfleet_worker.server.engine_client import SequenceRequest
from warmfleet_worker.server.sequence_handle import SequenceHandle, TokenUpdate

SLOW_READER: Final = "slow_reader"
"""Code of the error that ends an answer which its client reads too slowly."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of one choice's text; the last one has the finish reason.

    The text is empty where none is certain yet: after a control token, a part of a character, or what may
    begin a stop string.
    """

    index: int
    text: str
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    """The generated tokens that begin in the text, if the request asks for them. The last delta also has
    those without text, such as an end token."""
    logprobs: tuple[AnswerToken, ...] | None = None
    """The same tokens with their log probabilities, if the request asks for them: an echoed prompt's before
    them. Tokens without text are among them only if all tokens are listed, or ids are asked for."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of all choices of one answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_json(self) -> dict[str, object]:
        """OpenAI's shape, with cached_tokens even when it is zero."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class ChoiceDecoder:
    """Decodes one sequence to text deltas, applies stop strings, and records its times in the metrics."""

    def __init__(
        self,
        index: int,
        handle: SequenceHandle,
        detokenizer: Detokenizer,
        sequence: SequenceRequest,
        metrics: WorkerMetrics,
        *,
        echo: EchoedPrompt,
        return_token_ids: bool,
        lists_all_tokens: bool,
        shares_prompt: bool = False,
    ) -> None:
        """`sequence` is the request to the engine; `echo` comes before the text.

        `lists_all_tokens`: those without text have log probabilities in the answer, too.
        `shares_prompt`: the usage counts the prompt with an earlier choice.
        """
        self.index = index
        self.handle = handle
        self.prompt_tokens = len(sequence.prompt_token_ids)
        self.shares_prompt = shares_prompt
        self.completion_tokens = 0
        self.finish_reason = ""
        self.first_token_seconds: float | None = None
        self._detokenizer = detokenizer
        self._sampling = sequence.sampling
        self._metrics = metrics
        self._echo = echo
        self._prompt_scores: list[TokenLogprobs] = []
        self._return_token_ids = return_token_ids
        self._takes_rest = lists_all_tokens or return_token_ids
        self._queue = TokenQueue()
        self._sent_chars = len(echo.text)
        self._begun = False
        self._started = monotonic()
        self._last_tokens = self._started
        self._admitted = False

    @property
    def cached_tokens(self) -> int:
        cached_prefix = self.handle.cached_prefix
        return cached_prefix.cached_tokens if cached_prefix else 0

    def record_admission(self) -> None:
        """Record queue time and cached tokens, once, as soon as they are known."""
        if self._admitted or self.handle.cached_prefix is None:
            return
        self._admitted = True
        self._metrics.on_admission(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            queue_seconds=monotonic() - self._started,
        )

    def take(self) -> Delta | None:
        """What was generated since the last call; None if nothing was.

        Tokens without text are something: when an answer begins, and how fast it comes, shows in its deltas.

        Raises:
            RequestError: the engine failed the sequence, or its client did not read it.
        """
        if self.finish_reason:
            return None
        self.record_admission()
        update = self.handle.take()
        self._prompt_scores += update.prompt_logprobs
        text = self._text_of(update)
        if self._detokenizer.stopped:
            self.handle.abort()
            self.finish_reason = "stop"
        elif update.finish_reason in {"error", "lost", "refused", "busy", "unread"}:
            raise self._engine_error(update)
        elif update.finish_reason:
            self.finish_reason = "length" if update.finish_reason == "length" else "stop"
            text += self._detokenizer.finish()
        if self.finish_reason:
            self._metrics.on_finish(
                reason=self.finish_reason,
                generated_tokens=self.completion_tokens,
                seconds=monotonic() - self._started,
            )
        elif not update.token_ids:
            return None
        return self._delta(text)

    def _delta(self, text: str) -> Delta:
        self._sent_chars += len(text)
        tokens = self._queue.take(self._sent_chars)
        if self.finish_reason and self._takes_rest:
            tokens += self._queue.take_rest(self._sent_chars)
        token_ids = tuple(token.token_id for token in tokens) if self._return_token_ids else None
        if not self._begun:
            self._begun = True
            text = self._echo.text + text
            tokens[:0] = self._echo.tokens(self._prompt_scores)
            self._prompt_scores.clear()
        logprobs = None if self._sampling.logprobs is None else tuple(tokens)
        return Delta(self.index, text, self.finish_reason or None, token_ids, logprobs)

    def _text_of(self, update: TokenUpdate) -> str:
        pieces = []
        counted = 0
        keeps_tokens = self._return_token_ids or self._sampling.logprobs is not None
        scores = chain.from_iterable(update.logprobs)
        for token_id in update.token_ids:
            counted += 1
            if token_id in self._sampling.stop_token_ids:
                self._queue.push_end(token_id, next(scores, None))
                continue
            if keeps_tokens:
                offset = len(self._echo.text) + self._detokenizer.decoded_chars
                self._queue.push(AnswerToken(token_id, offset, next(scores, None)))
            pieces.append(self._detokenizer.push(token_id))
            if self._detokenizer.stopped:
                break
        self.completion_tokens += counted
        if counted:
            self._note_tokens(counted)
        return "".join(pieces)

    def _note_tokens(self, tokens: int) -> None:
        now = monotonic()
        if self.first_token_seconds is None:
            self.first_token_seconds = now - self._started
            self._metrics.on_first_tokens(tokens, self.first_token_seconds)
        else:
            self._metrics.on_tokens(tokens, now - self._last_tokens)
        self._last_tokens = now

    def _engine_error(self, update: TokenUpdate) -> RequestError:
        if update.finish_reason == "refused":
            return RequestError(update.error)  # by each replica: none of them is at fault
        if update.finish_reason == "busy":
            return RequestError(
                update.error,
                status=429,
                type="rate_limit_error",
                code="overloaded",
                retry_after_seconds=1,
            )
        if update.finish_reason == "unread":  # no replica is at fault
            return RequestError(update.error, status=408, code=SLOW_READER)
        # Nothing was computed, or it is lost with its engine: another replica may still answer.
        is_answerable = update.finish_reason == "lost" or self.handle.cached_prefix is None
        status, code = (503, "not_ready") if is_answerable else (500, "engine_error")
        return RequestError(
            update.error, status=status, type="server_error", code=code, retry_after_seconds=1
        )


def joined(index: int, pieces: Sequence[Delta]) -> Delta:
    """All deltas of one choice as one."""
    ids = [piece.token_ids for piece in pieces if piece.token_ids is not None]
    logprobs = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    return Delta(
        index,
        "".join(piece.text for piece in pieces),
        pieces[-1].finish_reason,
        tuple(chain.from_iterable(ids)) if ids else None,
        tuple(chain.from_iterable(logprobs)) if logprobs else None,
    )


def all_finished(choices: Sequence[ChoiceDecoder]) -> bool:
    """Whether there is nothing left to take."""
    return all(choice.finish_reason for choice in choices)


def total_usage(choices: Sequence[ChoiceDecoder]) -> Usage:
    """Sum over all choices; each prompt counts once."""
    prompts = [choice for choice in choices if not choice.shares_prompt]
    return Usage(
        prompt_tokens=sum(choice.prompt_tokens for choice in prompts),
        completion_tokens=sum(choice.completion_tokens for choice in choices),
        cached_tokens=sum(choice.cached_tokens for choice in prompts),
    )
