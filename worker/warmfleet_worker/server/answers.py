"""OpenAI's answer objects, chat and text completion, whole and in chunks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import msgspec

from warmfleet_contracts.openai.server_sent_event import one_line
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

    def fields(self, prefix: str, kind: str) -> dict[str, Any]:
        """As they begin an object."""
        return {
            "id": f"{prefix}-{self.request_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


class Dialect(Protocol):
    """The format of one answer of one endpoint."""

    lists_all_tokens: ClassVar[bool]
    """Whether tokens without text have log probabilities in an answer that has no token ids."""

    def opening(self, choices: int) -> bytes:
        """Events before any text."""
        ...

    def event(self, delta: Delta) -> bytes:
        """One delta as a server-sent event."""
        ...

    def usage_event(self, usage: Usage) -> bytes:
        """The chunk with usage and without choices."""
        ...

    def whole(self, answers: Sequence[Delta], usage: Usage) -> bytes:
        """The plain answer, from one joined delta per choice."""
        ...


class Chunks:
    """The chunks of one answer as events: what all of them begin with is encoded once."""

    def __init__(self, head: dict[str, Any], text_before: bytes, text_after: bytes) -> None:
        """`text_before` and `text_after` stand around the text of a choice that has nothing else."""
        self._start = b"data: " + one_line(_encode(head))[:-1] + b',"choices":['
        self._text_before = text_before
        self._text_after = text_after + b',"logprobs":null,"finish_reason":null}]}\n\n'

    def text(self, index: int, text: str) -> bytes:
        """A piece of a choice's text, as nearly every token is."""
        return b'%b{"index":%d,%b%b%b' % (
            self._start,
            index,
            self._text_before,
            one_line(_encode(text)),
            self._text_after,
        )

    def event(self, choices: Sequence[dict[str, Any]], **more: object) -> bytes:
        """Any chunk; `more` are fields behind its choices."""
        parts = b",".join(_encode(choice) for choice in choices) + b"]"
        parts += b"".join(b",%b:%b" % (_encode(name), _encode(value)) for name, value in more.items())
        return self._start + one_line(parts) + b"}\n\n"


class ChatDialect:
    """`/v1/chat/completions`."""

    # As OpenAI's `logprobs.content`: joined, it is the message's content.
    lists_all_tokens: ClassVar[bool] = False

    def __init__(self, head: AnswerHead, texts: TokenTexts) -> None:
        self._head = head
        self._texts = texts
        self._chunks = Chunks(head.fields("chatcmpl", "chat.completion.chunk"), b'"delta":{"content":', b"}")

    def opening(self, choices: int) -> bytes:
        role = {"role": "assistant", "content": ""}
        return b"".join(
            self._chunks.event([_choice(Delta(index, ""), None, delta=role)]) for index in range(choices)
        )

    def event(self, delta: Delta) -> bytes:
        if is_text_alone(delta):
            return self._chunks.text(delta.index, delta.text)
        content = {} if delta.finish_reason and not delta.text else {"content": delta.text}
        # No log probabilities are null in a chunk, and an empty list in a whole answer.
        return self._chunks.event(
            [_choice(delta, self._logprobs(delta) if delta.logprobs else None, delta=content)]
        )

    def usage_event(self, usage: Usage) -> bytes:
        return self._chunks.event([], usage=usage.as_json())

    def whole(self, answers: Sequence[Delta], usage: Usage) -> bytes:
        choices = [
            _choice(
                answer,
                self._logprobs(answer),
                message={"role": "assistant", "content": answer.text, "refusal": None},
            )
            for answer in answers
        ]
        fields = self._head.fields("chatcmpl", "chat.completion")
        return _encode({**fields, "choices": choices, "usage": usage.as_json()})

    def _logprobs(self, answer: Delta) -> dict[str, Any] | None:
        return None if answer.logprobs is None else chat_logprobs(answer.logprobs, self._texts)


class CompletionDialect:
    """`/v1/completions`."""

    # Evaluation harnesses count on as many entries as tokens.
    lists_all_tokens: ClassVar[bool] = True

    def __init__(self, head: AnswerHead, texts: TokenTexts) -> None:
        self._head = head
        self._texts = texts
        self._chunks = Chunks(head.fields("cmpl", "text_completion"), b'"text":', b"")

    def opening(self, choices: int) -> bytes:
        del choices
        return b""

    def event(self, delta: Delta) -> bytes:
        if is_text_alone(delta):
            return self._chunks.text(delta.index, delta.text)
        return self._chunks.event(
            [_choice(delta, self._logprobs(delta) if delta.logprobs else None, text=delta.text)]
        )

    def usage_event(self, usage: Usage) -> bytes:
        return self._chunks.event([], usage=usage.as_json())

    def whole(self, answers: Sequence[Delta], usage: Usage) -> bytes:
        choices = [_choice(answer, self._logprobs(answer), text=answer.text) for answer in answers]
        fields = self._head.fields("cmpl", "text_completion")
        return _encode({**fields, "choices": choices, "usage": usage.as_json()})

    def _logprobs(self, answer: Delta) -> dict[str, Any] | None:
        return None if answer.logprobs is None else completion_logprobs(answer.logprobs, self._texts)


def is_text_alone(delta: Delta) -> bool:
    """Whether a delta has its text, be it empty, and nothing else besides."""
    return not (delta.finish_reason or delta.logprobs or delta.token_ids is not None)


def _choice(answer: Delta, logprobs: dict[str, Any] | None, /, **content: object) -> dict[str, Any]:
    choice = {
        "index": answer.index,
        **content,
        "logprobs": logprobs,
        "finish_reason": answer.finish_reason,
    }
    return choice if answer.token_ids is None else {**choice, "token_ids": answer.token_ids}
