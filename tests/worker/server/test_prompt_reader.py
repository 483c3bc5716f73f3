"""What a worker remembers of prompts belongs to the salt of the dispatch."""

import json

from warmfleet_contracts.openai import decode_chat_request
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
