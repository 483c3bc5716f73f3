"""Prompts too long for every worker are refused by the router itself, in the worker's words."""

import json
from pathlib import Path

import pytest

from warmfleet_contracts.openai import RequestError, decode_chat_request, decode_completion_request
from warmfleet_router.api.context_length import require_fitting
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
    require_fitting(request, {digest: [[1] * 99]}, hellos)
    # Nothing is known of a prompt whose tokenizer has not come yet.
    require_fitting(request, {}, hellos)
    chat = decode_chat_request(b'{"model": "stub", "messages": [{"role": "user", "content": "x"}]}')
    with pytest.raises(RequestError) as refused:
        require_fitting(chat, {digest: [[1] * 100]}, hellos)
    assert refused.value.param == "messages"
