"""A full fleet over real sockets: what the client of a stream gets while it waits."""

import asyncio
import json
from pathlib import Path

from warmfleet_router.admission.queue_bounds import AdmissionSettings
from warmfleet_testing.router.full_fleet import cancelled, held, occupied, until
from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub


async def test_a_stream_that_waits_gets_pings_and_then_its_answer(tmp_path: Path) -> None:
    settings = AdmissionSettings(ping_seconds=0.05)
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            first = await occupied(router, stub, 1)
            streaming = asyncio.create_task(router.ask("hi", stream=True))
            plain = asyncio.create_task(router.ask("hi"))
            await asyncio.sleep(0.3)
            await cancelled(first)
            status, headers, body = await streaming
            plain_status, plain_headers, _ = await plain

    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-request-id"]
    lines = body.split(b"\n\n")
    assert lines.count(b": ping") >= 3
    assert body.endswith(b"data: [DONE]\n\n")
    assert b": ping" not in body[body.index(b"data:") :]
    assert (plain_status, plain_headers["content-type"]) == (200, "application/json")


async def test_a_stream_that_was_pinged_is_refused_by_an_error_object(tmp_path: Path) -> None:
    settings = AdmissionSettings(ping_seconds=0.05, max_held_seconds=0.2)
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            first = await occupied(router, stub, 1)
            status, _, body = await router.ask("hi", stream=True)
            plain_status, plain_headers, plain_body = await router.ask("hi")
            await cancelled(first)

    assert status == 200
    last = body.rstrip().split(b"\n\n")[-1]
    assert last.startswith(b"data: ")
    assert json.loads(last[6:])["error"]["code"] == "overloaded"
    assert (plain_status, json.loads(plain_body)["error"]["code"]) == (429, "overloaded")
    assert int(plain_headers["retry-after"]) >= 1


async def test_a_pinged_stream_gets_its_workers_refusal(tmp_path: Path) -> None:
    settings = AdmissionSettings(ping_seconds=0.05)
    with running_stub(StubWorker(uid="w0", max_running_sequences=1)) as stub:
        async with running_router([stub], tmp_path, admission=settings) as router:
            first = await occupied(router, stub, 1)
            asking = asyncio.create_task(router.ask("hi", stream=True))
            await until(lambda: held(router).requests == 1)
            await asyncio.sleep(0.15)
            stub.faults.refuse_status = 400
            await cancelled(first)
            status, _, body = await asking

    assert status == 200
    assert body.endswith(b'data: {"error": {}}\n\n')
