"""The router's encoders: what they remember of prompts is the tenant's, and how many are in memory."""

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from warmfleet_contracts.openai import decode_chat_request, decode_completion_request
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_contracts.prompts.prompt_size import INLINE_CHARS
from warmfleet_router.workers.encoders import IDLE_SECONDS, MAX_ENCODERS, POLL_SECONDS, Encoders
from warmfleet_router.workers.upstream import Upstream
from warmfleet_testing.engine.tiny_tokenizer import tiny_prompt_assets

LONG = "the cat sat on the mat. " * 30


async def test_another_salt_finds_nothing_that_a_first_one_has_sent(tmp_path: Path) -> None:
    encoder = PromptEncoder.from_assets(tiny_prompt_assets())
    digest = encoder.tokenizer_digest
    encoders = Encoders(tmp_path, Upstream(), list)
    encoders._keep_in_memory(digest, encoder)
    messages = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": LONG * (INLINE_CHARS // 700)},
    ]
    chat = decode_chat_request(json.dumps({"model": "m", "messages": messages}).encode())
    text = decode_completion_request(json.dumps({"model": "m", "prompt": LONG}).encode())
    counts = []

    for salt in (b"a", b"a", b"b"):
        of_chat = await encoders.encode(chat, {digest: 100_000}, salt)
        of_text = await encoders.encode(text, {digest: 100_000}, salt)
        assert of_chat.token_ids == {digest: [encoder.encode_chat(chat.messages)]}
        assert of_text.token_ids == {digest: [encoder.encode_text(LONG)]}
        counts.append(len(encoders._memory._entries))
    await encoders.stop()

    # Two segments of the chat and the completion's one; again for another salt.
    assert counts == [3, 3, 6]


async def test_of_more_tokenizers_than_fit_those_are_loaded_that_prompts_ask_for(tmp_path: Path) -> None:
    digests = []
    for number in range(MAX_ENCODERS + 2):
        assets = msgspec.structs.replace(tiny_prompt_assets(), special_tokens={"number": str(number)})
        digests.append(assets.digest.hex())
        (tmp_path / f"{digests[-1]}.msgpack").write_bytes(msgspec.msgpack.encode(assets))
    first, asked_for = digests[0], digests[MAX_ENCODERS]
    workers = [SimpleNamespace(hello=SimpleNamespace(tokenizer_digest=digest)) for digest in digests]
    now = 0.0
    encoders = Encoders(tmp_path, Upstream(), lambda: workers, clock=lambda: now)  # type: ignore[arg-type, return-value]

    async def loaded_after_some_rounds() -> set[str]:
        for _ in range(100):
            if encoders.count == MAX_ENCODERS:
                break
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.sleep(5 * POLL_SECONDS)
        return set(encoders._encoders)

    async def encode(digest: str) -> None:
        request = decode_completion_request(json.dumps({"model": "m", "prompt": "a"}).encode())
        await encoders.encode(request, {digest: 100}, b"")

    await encoders.start()
    assert await loaded_after_some_rounds() == set(digests[:MAX_ENCODERS])
    assert all(map(encoders.is_settled, digests)), "a router that waits for the others is never ready"
    kept = dict(encoders._encoders)

    await encode(asked_for)
    assert await loaded_after_some_rounds() == set(digests[:MAX_ENCODERS]), "none is idle yet"

    now = IDLE_SECONDS
    await encode(first)
    assert await loaded_after_some_rounds() == {first, asked_for, *digests[2:MAX_ENCODERS]}
    assert all(encoders._encoders[digest] is kept[digest] for digest in (first, *digests[2:MAX_ENCODERS]))
    await encoders.stop()


async def test_many_empty_messages_are_encoded_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = PromptEncoder.from_assets(tiny_prompt_assets())
    encoders = Encoders(tmp_path, Upstream(), list)
    encoders._keep_in_memory(encoder.tokenizer_digest, encoder)
    threads, encode_chat = [], encoder.encode_chat

    def encode(*given: Any) -> list[int]:
        threads.append(threading.current_thread())
        return encode_chat(*given)

    monkeypatch.setattr(encoder, "encode_chat", encode)
    for count in (1, 1000):
        messages = [{"role": "user", "content": "hello"}] + [{"role": "assistant"}] * count
        chat = decode_chat_request(json.dumps({"model": "m", "messages": messages}).encode())
        await encoders.encode(chat, {encoder.tokenizer_digest: 100_000}, b"")
    await encoders.stop()

    short, long = threads
    assert short is threading.main_thread() is not long
