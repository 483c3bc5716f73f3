"""One tenant's sockets and bodies, through the whole router: another tenant is served meanwhile."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from warmfleet_contracts.openai import CompletionRequest
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_router.admission.queue_bounds import MIB, AdmissionSettings, Amount
from warmfleet_router.workers import encoders
from warmfleet_testing.router.guarded_router import guarded
from warmfleet_testing.router.planted_keys import PlantedKeys, bearer
from warmfleet_testing.router.router_fixture import RunningRouter
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

KEYS: Final = PlantedKeys()
HOSTILE, LIGHT = KEYS.add("hostile").text, KEYS.add("light").text
DECLARED: Final = f"content-length: {32 * MIB}\r\n"
CHUNKED: Final = "transfer-encoding: chunked\r\n"


@pytest.fixture
def stub() -> Iterator[StubWorker]:
    with running_stub(StubWorker(uid="w0")) as running:
        yield running


@asynccontextmanager
async def sockets(router: RunningRouter, count: int, framing: str, path: str) -> AsyncGenerator[None, None]:
    """Connections of the hostile tenant, each with the head of a request and 1 KiB of its body."""
    host, _, port = router.url.removeprefix("http://").rpartition(":")
    opened = await asyncio.gather(*(asyncio.open_connection(host, int(port)) for _ in range(count)))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {HOSTILE}\r\n{framing}\r\n".encode()
    piece = b"400\r\n" + b" " * 1024 + b"\r\n" if framing is CHUNKED else b" " * 1024
    for _, writer in opened:
        writer.write(head + piece)
    try:
        yield
    finally:
        for _, writer in opened:
            writer.transport.abort()


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("framing", [DECLARED, CHUNKED])
async def test_sockets_that_send_nothing_more_count_what_they_sent_and_lock_no_tenant_out(
    stub: StubWorker, tmp_path: Path, framing: str, path: str
) -> None:
    async with guarded(stub, tmp_path, KEYS) as router:
        limits = router.router.limits
        async with sockets(router, 20, framing, path):
            await router.until(lambda: limits.in_flight == Amount(20, 20 * 1024))

            status, _, _ = await router.ask("hello", headers=bearer(LIGHT))

    assert status == 200


async def test_a_tenant_with_more_sockets_than_the_router_takes_leaves_room_for_the_next(
    stub: StubWorker, tmp_path: Path
) -> None:
    settings = AdmissionSettings(max_in_flight=Amount(32, MIB, 2**62))
    async with guarded(stub, tmp_path, KEYS, admission=settings) as router:
        limits = router.router.limits
        async with sockets(router, 40, DECLARED, "/v1/completions"):
            await router.until(lambda: limits.in_flight.requests == 16)

            mine, _, body = await router.ask("hello", headers=bearer(HOSTILE))
            theirs = [await router.ask("hello", headers=bearer(LIGHT)) for _ in range(8)]

    assert (mine, json.loads(body)["error"]["code"]) == (429, "tenant_quota_exceeded")
    assert [status for status, _, _ in theirs] == [200] * 8


async def test_a_tenants_large_prompts_do_not_hold_up_the_encoding_of_anothers(
    stub: StubWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given four large prompts of one tenant whose encoding does not end
    held, order = threading.Event(), []
    encode = encoders._encode_prompts

    def held_up(encoder: PromptEncoder, request: CompletionRequest, *more: Any) -> list[list[int]]:
        mark = str(request.prompts[0])[0]
        order.append(mark)
        if mark == "h":
            held.wait(30)
        return encode(encoder, request, *more)

    monkeypatch.setattr(encoders, "_encode_prompts", held_up)
    async with guarded(stub, tmp_path, KEYS) as router:
        hostile = [asyncio.create_task(router.ask("h" * 20_000, headers=bearer(HOSTILE))) for _ in range(4)]
        await router.until(lambda: router.router.limits.in_flight.buffered_bytes > 80_000)

        # When another tenant asks with one, then it is answered meanwhile
        status, _, _ = await router.ask("l" * 20_000, headers=bearer(LIGHT))
        began = list(order)

        held.set()
        answers = await asyncio.gather(*hostile)

    assert status == 200
    assert began == ["h", "l"]
    assert [answer[0] for answer in answers] == [200] * 4


async def test_plain_answers_are_bounded_in_sum_as_they_arrive(stub: StubWorker, tmp_path: Path) -> None:
    settings = AdmissionSettings(max_in_flight=Amount(32, MIB, 2**62))
    stub.events = 200_000  # an answer of 1.3 MB
    async with guarded(stub, tmp_path, KEYS, admission=settings) as router:
        refused, headers, _ = await router.ask("hello", headers=bearer(HOSTILE))
        in_flight = router.router.limits.in_flight

    assert refused == 429
    assert headers["retry-after"]
    assert in_flight == Amount()


async def test_an_answer_counts_until_its_client_has_taken_it(stub: StubWorker, tmp_path: Path) -> None:
    # Given an answer of 7 MB and a client that takes nothing of it
    stub.events = 1_000_000
    async with guarded(stub, tmp_path, KEYS) as router:
        limits = router.router.limits
        host, _, port = router.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=4096)
        body = json.dumps({"model": "stub", "prompt": "hello"}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {HOSTILE}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)

        # When the worker is done with it
        await router.until(lambda: limits.in_flight.buffered_bytes > 6_800_000)
        await router.until(lambda: stub.requests and not stub.running)

        # Then it counts, until the client has taken all but what the socket holds
        assert limits.in_flight.buffered_bytes > 6_800_000
        size_bytes = len(await reader.read(-1))
        await router.until(lambda: limits.in_flight == Amount())
        writer.close()

    assert size_bytes > 6_800_000


async def test_long_answers_of_one_tenant_lock_no_tenant_with_a_token_limit_out(tmp_path: Path) -> None:
    keys = PlantedKeys()
    limited, other = keys.add("limited", max_in_flight_tokens=100).text, keys.add("other").text
    body = {"model": "stub", "messages": [{"role": "user", "content": "hello"}]}
    with running_stub(StubWorker(uid="w0", events=2000)) as stub:
        async with guarded(stub, tmp_path, keys) as router:
            for _ in range(3):
                await router.ask("hello", headers=bearer(other), max_tokens=2000)
            stub.events = 4

            async def chat(**fields: Any) -> int:
                url = router.url + "/v1/chat/completions"
                async with router.http.post(url, json=body | fields, headers=bearer(limited)) as response:
                    return response.status

            unstated, fitting = await chat(), await chat(max_tokens=20)
            beyond = await chat(max_tokens=101)

    assert (unstated, fitting, beyond) == (200, 200, 429)
