"""What a chunk is made of: encoded once per answer or once per token, it is the same JSON."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.openai.server_sent_event import server_sent_event
from warmfleet_worker.server.answers import AnswerHead, ChatDialect, CompletionDialect, Dialect
from warmfleet_worker.server.choices import Delta, Usage

HEAD = AnswerHead(request_id="id", created=17, model='a "model"\u2028')
COMMON = {"created": 17, "model": 'a "model"\u2028'}
TEXTS = st.text(st.sampled_from('ab"\\\n\r\u0085\u2028\u2029é\U0001f600\x00')) | st.text()


def dialects() -> dict[str, tuple[Dialect, str, str]]:
    """Each with what its ids begin with, and its kind of object."""
    texts: object = None  # only for log probabilities
    return {
        "chat": (ChatDialect(HEAD, texts), "chatcmpl", "chat.completion.chunk"),  # type: ignore[arg-type]
        "text": (CompletionDialect(HEAD, texts), "cmpl", "text_completion"),  # type: ignore[arg-type]
    }


def expected(name: str, choices: list[dict[str, object]], **more: object) -> bytes:
    """The chunk, encoded at once."""
    _, prefix, kind = dialects()[name]
    document = {"id": f"{prefix}-id", "object": kind, **COMMON, "choices": choices, **more}
    return server_sent_event(msgspec.json.encode(document))


@pytest.mark.parametrize("name", ["chat", "text"])
@given(text=TEXTS, index=st.integers(0, 200), finish=st.sampled_from([None, "stop"]))
def test_a_chunk_is_the_same_bytes_as_if_it_had_been_encoded_at_once(
    name: str, text: str, index: int, finish: str | None
) -> None:
    content: dict[str, object] = {"text": text}
    if name == "chat":
        content = {"delta": {"content": text} if text or not finish else {}}

    event = dialects()[name][0].event(Delta(index, text, finish))

    choice = {"index": index, **content, "logprobs": None, "finish_reason": finish}
    assert event == expected(name, [choice])


@pytest.mark.parametrize("name", ["chat", "text"])
def test_usage_comes_behind_no_choices_and_token_ids_behind_the_reason(name: str) -> None:
    dialect = dialects()[name][0]

    usage = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1)
    assert dialect.usage_event(usage) == expected(name, [], usage=usage.as_json())
    event = dialect.event(Delta(0, "x", token_ids=(5, 7)))

    assert list(json.loads(event.removeprefix(b"data: "))["choices"][0])[-2:] == [
        "finish_reason",
        "token_ids",
    ]


def test_a_chat_begins_with_the_role_of_each_choice() -> None:
    role = {"role": "assistant", "content": ""}
    choices = [{"index": index, "delta": role, "logprobs": None, "finish_reason": None} for index in range(2)]

    assert dialects()["chat"][0].opening(2) == b"".join(expected("chat", [choice]) for choice in choices)
    assert dialects()["text"][0].opening(2) == b""
