"""OpenAI's answer objects, chat and text completion, whole and in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from warmfleet_contracts.openai.server_sent_event import server_sent_event
from warmfleet_worker.server.choices import Delta, Usage
from warmfleet_worker.server.logprobs_json import chat_logprobs, completion_logprobs
from warmfleet_worker.server.token_texts import TokenTexts

DONE_EVENT: Final = b"data: [DONE]\n\n"

_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """Fields that every object of one answer repeats."""

    request_id: str
    created: int
    """Unix time in seconds."""
    model: str


class Dialect(Protocol):
    """The answer format of one endpoint."""

    def opening(self, head: AnswerHead, choices: int) -> list[bytes]:
        """Events before any text."""
        ...

    def event(self, head: AnswerHead, delta: Delta) -> bytes:
        """One delta as a server-sent event."""
        ...

    def usage_event(self, head: AnswerHead, usage: Usage) -> bytes:
        """The chunk with usage and without choices."""
        ...

    def whole(self, head: AnswerHead, answers: Sequence[Delta], usage: Usage) -> bytes:
        """The plain answer, from one joined delta per choice."""
        ...


class ChatDialect:
    """`/v1/chat/completions`."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts

    def opening(self, head: AnswerHead, choices: int) -> list[bytes]:
        role = {"role": "assistant", "content": ""}
        return [self._chunk(head, [_choice(Delta(index, ""), None, delta=role)]) for index in range(choices)]

    def event(self, head: AnswerHead, delta: Delta) -> bytes:
        content = {"content": delta.text} if delta.text else {}
        # No log probabilities are null in a chunk, and an empty list in a whole answer.
        return self._chunk(
            head, [_choice(delta, self._logprobs(delta) if delta.logprobs else None, delta=content)]
        )

    def usage_event(self, head: AnswerHead, usage: Usage) -> bytes:
        return self._chunk(head, [], usage=usage.as_json())

    def whole(self, head: AnswerHead, answers: Sequence[Delta], usage: Usage) -> bytes:
        choices = [
            _choice(
                answer,
                self._logprobs(answer),
                message={"role": "assistant", "content": answer.text, "refusal": None},
            )
            for answer in answers
        ]
        return _encode(
            {**_head(head, "chatcmpl", "chat.completion"), "choices": choices, "usage": usage.as_json()}
        )

    def _chunk(self, head: AnswerHead, choices: list[dict[str, Any]], **more: object) -> bytes:
        return server_sent_event(
            _encode({**_head(head, "chatcmpl", "chat.completion.chunk"), "choices": choices, **more})
        )

    def _logprobs(self, answer: Delta) -> dict[str, Any] | None:
        return None if answer.logprobs is None else chat_logprobs(answer.logprobs, self._texts)


class CompletionDialect:
    """`/v1/completions`."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts

    def opening(self, head: AnswerHead, choices: int) -> list[bytes]:
        del head, choices
        return []

    def event(self, head: AnswerHead, delta: Delta) -> bytes:
        return self._chunk(
            head, [_choice(delta, self._logprobs(delta) if delta.logprobs else None, text=delta.text)]
        )

    def usage_event(self, head: AnswerHead, usage: Usage) -> bytes:
        return self._chunk(head, [], usage=usage.as_json())

    def whole(self, head: AnswerHead, answers: Sequence[Delta], usage: Usage) -> bytes:
        choices = [_choice(answer, self._logprobs(answer), text=answer.text) for answer in answers]
        return _encode(
            {**_head(head, "cmpl", "text_completion"), "choices": choices, "usage": usage.as_json()}
        )

    def _chunk(self, head: AnswerHead, choices: list[dict[str, Any]], **more: object) -> bytes:
        return server_sent_event(
            _encode({**_head(head, "cmpl", "text_completion"), "choices": choices, **more})
        )

    def _logprobs(self, answer: Delta) -> dict[str, Any] | None:
        return None if answer.logprobs is None else completion_logprobs(answer.logprobs, self._texts)


def _head(head: AnswerHead, prefix: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{head.request_id}",
        "object": kind,
        "created": head.created,
        "model": head.model,
    }


def _choice(answer: Delta, logprobs: dict[str, Any] | None, /, **content: object) -> dict[str, Any]:
    choice = {
        "index": answer.index,
        **content,
        "logprobs": logprobs,
        "finish_reason": answer.finish_reason,
    }
    return choice if answer.token_ids is None else {**choice, "token_ids": answer.token_ids}
