"""An echoed prompt is decoded beside the event loop if its tokens are many, also if these have no text."""

import json
import threading

import pytest

from warmfleet_contracts.openai import decode_completion_request
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_contracts.prompts.segment_memory import SegmentMemory
from warmfleet_testing.engine.engine_ready import READY
from warmfleet_testing.engine.tiny_tokenizer import tiny_prompt_assets
from warmfleet_worker.server import requests
from warmfleet_worker.server.answer_tokens import EchoedPrompt, text_offsets
from warmfleet_worker.server.requests import INLINE_DECODED_TOKENS, DispatchHeaders, PromptReader

CONTROL = 1
LETTER = 100


async def echoes_of(
    prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[EchoedPrompt], set[bool]]:
    """With whether the offsets were found in the thread of the event loop."""
    inline = set()

    def watched(*arguments: object) -> list[int]:
        inline.add(threading.current_thread() is threading.main_thread())
        return text_offsets(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(requests, "text_offsets", watched)
    body = {"model": "m", "prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 0}
    request = decode_completion_request(json.dumps(body).encode())
    reader = PromptReader(PromptEncoder.from_assets(tiny_prompt_assets()), READY, SegmentMemory())
    sequences = await reader.completion(request, DispatchHeaders())
    return await reader.echoes(request, sequences), inline


@pytest.mark.parametrize("token_id", [CONTROL, LETTER])
@pytest.mark.parametrize(("surplus", "inline"), [(0, True), (1, False)])
async def test_the_number_of_all_tokens_decides_where_prompts_are_decoded(
    token_id: int, surplus: int, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = INLINE_DECODED_TOKENS // 2
    prompts = [[token_id] * half, [token_id] * (half - 1 + surplus) + [LETTER]]

    echoes, found_inline = await echoes_of(prompts, monkeypatch)

    assert found_inline == {inline}
    assert [list(echo.token_ids) for echo in echoes] == prompts


async def test_equal_prompts_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = [CONTROL] * (INLINE_DECODED_TOKENS - 1) + [LETTER]

    echoes, inline = await echoes_of([prompt] * 3, monkeypatch)

    assert inline == {True}
    assert echoes[0] is echoes[1] is echoes[2]
    assert echoes[0].text_offsets == [0] * len(prompt)
