"""What a worker remembers of prompts belongs to the salt of the dispatch; long ones do not stop its loop."""

import json
import threading
from typing import Any

import pytest

from warmfleet_contracts.openai import ChatRequest, RequestError, decode_chat_request
from warmfleet_contracts.prompts.chat_template import ChatTemplate
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_contracts.prompts.segment_memory import SegmentMemory
from warmfleet_testing.engine.engine_ready import READY
from warmfleet_testing.engine.tiny_tokenizer import tiny_prompt_assets
from warmfleet_worker.server.requests import DispatchHeaders, PromptReader


async def test_each_dispatch_salt_and_each_body_salt_remembers_for_itself() -> None:
    encoder, memory = PromptEncoder.from_assets(tiny_prompt_assets()), SegmentMemory()
    reader = PromptReader(encoder, READY, memory)
    body = {"model": "m", "messages": [{"role": "system", "content": "the cat sat. " * 50}]}
    plain = decode_chat_request(json.dumps(body).encode())
    salted = decode_chat_request(json.dumps(body | {"cache_salt": "mine"}).encode())
    router = [DispatchHeaders(salt=salt) for salt in (b"a" * 32, b"b" * 32)]
    counts = []

    for request, dispatch in [(plain, router[0]), (plain, router[1]), (plain, DispatchHeaders())] * 2:
        (sequence,) = await reader.chat(request, dispatch)
        assert list(sequence.prompt_token_ids) == encoder.encode_chat(request.messages)
        counts.append(len(memory._entries))
    await reader.chat(salted, DispatchHeaders())

    assert counts == [1, 2, 3, 3, 3, 3]
    assert len(memory._entries) == 4


async def test_many_empty_messages_are_encoded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = PromptEncoder.from_assets(tiny_prompt_assets())
    reader = PromptReader(encoder, READY, SegmentMemory())
    threads, encode_chat = [], encoder.encode_chat

    def encode(*given: Any) -> list[int]:
        threads.append(threading.current_thread())
        return encode_chat(*given)

    monkeypatch.setattr(encoder, "encode_chat", encode)
    for count in (1, 500):
        await reader.chat(conversation(count), DispatchHeaders())

    short, long = threads
    assert short is threading.main_thread() is not long


async def test_a_conversation_of_more_messages_than_the_context_has_tokens_is_not_rendered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = PromptEncoder.from_assets(tiny_prompt_assets())
    reader = PromptReader(encoder, READY, SegmentMemory())

    def must_not_render(*_args: object, **_options: object) -> str:
        raise AssertionError

    monkeypatch.setattr(ChatTemplate, "render", must_not_render)
    with pytest.raises(RequestError) as refused:
        await reader.chat(conversation(READY.max_model_length_tokens), DispatchHeaders())

    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert refused.value.param == "messages"


def conversation(empty_messages: int) -> ChatRequest:
    messages = [{"role": "user", "content": "hello"}] + [{"role": "assistant"}] * empty_messages
    return decode_chat_request(json.dumps({"model": "m", "messages": messages}).encode())
