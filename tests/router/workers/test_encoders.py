"""The router's encoders: what they remember of prompts belongs to the salt of the tenant that sent them."""

import json
from pathlib import Path

from warmfleet_contracts.openai import decode_chat_request, decode_completion_request
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_router.workers.encoders import INLINE_CHARS, Encoders
from warmfleet_router.workers.upstream import Upstream
from warmfleet_testing.engine.tiny_tokenizer import tiny_prompt_assets

LONG = "the cat sat on the mat. " * 30


async def test_another_salt_finds_nothing_that_a_first_one_has_sent(tmp_path: Path) -> None:
    encoder = PromptEncoder.from_assets(tiny_prompt_assets())
    digest = encoder.tokenizer_digest
    encoders = Encoders(tmp_path, Upstream(), list)
    encoders._encoders[digest] = encoder
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
