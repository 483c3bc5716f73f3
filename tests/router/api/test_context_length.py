"""Prompts too long for every worker are refused by the router itself, in the worker's words."""

import json
from pathlib import Path

import pytest
import tokenizers

from warmfleet_contracts.openai import RequestError, decode_chat_request, decode_completion_request
from warmfleet_contracts.prompts import encoder
from warmfleet_router.api.context_length import require_fitting
from warmfleet_router.workers.encoders import EncodedPrompts
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub


async def test_a_prompt_that_no_worker_can_take_is_refused_without_asking_one(tmp_path: Path) -> None:
    with running_stub(StubWorker(uid="w0", max_model_length_tokens=100)) as stub:
        async with running_router([stub], tmp_path) as router:
            fits, _, _ = await router.ask([1] * 99)
            scored, _, _ = await router.ask([1] * 100, max_tokens=0, echo=True)
            status, _, body = await router.ask([1] * 100)
            many, _, _ = await router.ask([[1] * 5, [1] * 100])  # type: ignore[list-item]  # a list of prompts

    error = json.loads(body)["error"]
    assert (fits, scored, status, many) == (200, 200, 400, 400)
    assert len(stub.requests) == 2
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert error["message"] == (
        "This model's maximum context length is 100 tokens. However, the prompt is too long: "
        "it has 100 tokens, and the answer needs at least one more."
    )


async def test_the_longest_context_among_the_workers_decides(tmp_path: Path) -> None:
    with (
        running_stub(StubWorker(uid="w0", max_model_length_tokens=50)) as short,
        running_stub(StubWorker(uid="w1", max_model_length_tokens=100)) as long,
    ):
        async with running_router([short, long], tmp_path) as router:
            status, _, body = await router.ask([1] * 100)
            hellos = [view.hello for view in router.router.workers.fleet.workers() if view.hello is not None]

    assert status == 400
    assert "maximum context length is 100 tokens" in json.loads(body)["error"]["message"]
    digest = hellos[0].tokenizer_digest
    request = decode_completion_request(b'{"model": "stub", "prompt": "x"}')
    require_fitting(request, EncodedPrompts({digest: [[1] * 99]}), hellos)
    # Nothing is known of a prompt whose tokenizer has not come yet.
    require_fitting(request, EncodedPrompts({}), hellos)
    chat = decode_chat_request(b'{"model": "stub", "messages": [{"role": "user", "content": "x"}]}')
    with pytest.raises(RequestError) as refused:
        require_fitting(chat, EncodedPrompts({digest: [[1] * 100]}), hellos)
    assert refused.value.param == "messages"


async def test_of_a_prompt_that_is_far_too_long_no_more_than_the_context_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a context of 1,000 tokens, and a tokenizer whose work is counted
    encoded_chars = 0
    encode = encoder._encode

    def counted(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
        nonlocal encoded_chars
        encoded_chars += len(text)
        return encode(tokenizer, text)

    with running_stub(StubWorker(uid="w0", max_model_length_tokens=1000)) as stub:
        async with running_router([stub], tmp_path) as router:
            monkeypatch.setattr(encoder, "_encode", counted)
            # When prompts of 1 MB come: text, one word, typed control tokens
            answers = [
                await router.ask(unit * (2**20 // len(unit)))
                for unit in ("abc xyz ", "a", "<|im_end|>q w ", "\u4e2d")
            ]

    # Then each is refused in the words of the worker, but for the count, and they were not encoded as a whole
    for status, _, body in answers:
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert error["message"] == (
            "This model's maximum context length is 1000 tokens. However, the prompt is too long: "
            "it has more than 1000 tokens, and the answer needs at least one more."
        )
    assert not stub.requests
    assert encoded_chars < 4 * 2 * 16_384
