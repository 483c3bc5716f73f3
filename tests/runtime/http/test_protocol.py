"""What arrives before there is a request: bounded in size and time, and answered in OpenAI's shape."""

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncGenerator

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import warmfleet_runtime.http.protocol as protocol
from warmfleet_runtime.http.app import openai_app
from warmfleet_runtime.http.edge import Edge
from warmfleet_runtime.http.listener import bind
from warmfleet_runtime.http.server import Server
from warmfleet_testing.hostile.leaving_clients import Goodbye, LeavingClient

HEAD = b"POST /count HTTP/1.1\r\nhost: x\r\n"


async def count(request: Request) -> Response:
    body = await request.body()
    return JSONResponse({"bytes": len(body), "headers": sorted(request.headers)})


async def slow(request: Request) -> Response:
    await asyncio.sleep(0.3)
    return Response("slow")


async def long(request: Request) -> Response:
    """More than the sockets' buffers hold."""
    await request.body()
    return Response(b"x" * 10_000_000)


@pytest.fixture
async def address() -> AsyncGenerator[tuple[str, int], None]:
    routes = [
        Route("/count", count, methods=["POST"]),
        Route("/long", long, methods=["POST"]),
        Route("/slow", slow, methods=["GET"]),
    ]
    listener = bind("127.0.0.1", 0)
    server = Server(Edge(openai_app(routes)), shutdown_seconds=1)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    yield listener.getsockname()[:2]
    server.should_exit = True
    await task


async def answer(address: tuple[str, int], *pieces: bytes) -> tuple[int, bytes]:
    """How many bytes the server took, and all that it sent until it closed or fell silent."""
    reader, writer = await asyncio.open_connection(*address)
    sent = 0
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
    received = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(10):
            while chunk := await reader.read(65_536):
                received += chunk
    writer.close()
    return sent, received


def error_of(received: bytes, status: int) -> dict[str, object]:
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"x-request-id: " in head
    return json.loads(body)["error"]


@pytest.mark.parametrize(
    "start", [b"GET /", HEAD + b"x-a: ", HEAD, b"\r\n"], ids=["line", "value", "many", "nothing"]
)
async def test_a_head_without_end_is_cut_off(address, start):
    # Given: 10 MiB, far more than the sockets' buffers hold
    piece = b"x-header: " + b"x" * 53 + b"\n" if start is HEAD else start if start == b"\r\n" else b"x"
    pieces = [start] + [piece * (65_536 // len(piece))] * 160

    sent, received = await answer(address, *pieces)

    assert sent < 10 * 1024 * 1024
    if received:  # a reset may overtake the words
        assert error_of(received, 431)["code"] == "headers_too_large"


async def test_a_head_just_beyond_the_limit_is_answered_with_the_reason(address):
    _, received = await answer(address, HEAD + b"x-a: ", b"x" * 40_000, b"x" * 40_000)

    assert error_of(received, 431)["code"] == "headers_too_large"


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01\n\r\n\r\n", b"HELLO /count HTTP/1.1\r\n\r\n", b"GET \xff HTTP/1.1\r\n\r\n"],
    ids=["tls", "method", "target"],
)
async def test_what_is_no_http_is_answered_with_the_reason(address, garbage):
    _, received = await answer(address, garbage)

    assert error_of(received, 400)["code"] == "invalid_http"


async def test_a_head_that_does_not_come_is_not_waited_for(address, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)

    _, received = await answer(address, HEAD)
    _, silence = await answer(address)

    assert error_of(received, 408)
    assert silence == b""


async def test_half_a_request_does_not_cut_off_the_answer_before_it(address, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)

    _, received = await answer(address, b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n", HEAD)

    first, _, rest = received.partition(b"slow")
    assert first.startswith(b"HTTP/1.1 200")
    assert error_of(rest, 408)


async def test_a_body_of_many_pieces_is_no_head(address):
    body = b"x" * 8192
    declared = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % (len(body) * 64)

    _, received = await answer(address, declared, *([body] * 64))

    assert json.loads(received.partition(b"\r\n\r\n")[2])["bytes"] == len(body) * 64


async def test_trailers_are_no_headers_and_have_an_end(address):
    chunked = HEAD + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"

    _, received = await answer(address, chunked, b"x-request-id: smuggled\r\n\r\n")
    sent, _ = await answer(address, chunked + b"x-a: ", *([b"x" * 65_536] * 160))

    assert json.loads(received.partition(b"\r\n\r\n")[2]) == {
        "bytes": 1,
        "headers": ["connection", "host", "transfer-encoding"],
    }
    assert b"smuggled" not in received
    assert sent < 10 * 1024 * 1024


@pytest.mark.parametrize(
    "body",
    [b"+2\r\n{}\r\n0\r\n\r\n", b"2\r\n{}xx0\r\n\r\n", b"10000000000000002\r\n{}\r\n0\r\n\r\n"],
    ids=["sign", "end", "size"],
)
async def test_a_malformed_chunk_is_answered_with_the_reason(address, body):
    _, received = await answer(address, HEAD + b"transfer-encoding: chunked\r\n\r\n" + body)

    assert error_of(received, 400)["code"] == "invalid_http"
    assert received.count(b"HTTP/1.1 ") == 1


async def test_garbage_behind_a_request_is_no_answer_to_it(address):
    _, received = await answer(address, b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n" + b"garbage\r\n\r\n")

    assert b"HTTP/1.1 400" not in received


@pytest.mark.parametrize("goodbye", Goodbye)
@pytest.mark.parametrize("path", ["/count", "/long"])
async def test_a_connection_that_has_ended_leaves_nothing_behind(address, path, goodbye):
    # Given: the long answer is still being sent when the server decides to close
    def open_protocols() -> int:
        gc.collect()
        # By its type: to ask an object for its `__class__` may run its code.
        return sum(issubclass(type(one), protocol.BoundedHeadProtocol) for one in gc.get_objects())

    before = open_protocols()
    for _ in range(3):
        client = LeavingClient(f"http://{address[0]}:{address[1]}")
        await client.connect()
        closing = "connection: close\r\n" if path == "/long" else ""
        await client.send(f"POST {path} HTTP/1.1\r\nhost: x\r\n{closing}content-length: 0\r\n\r\n".encode())
        assert (await client.read()).complete
        client.leave(goodbye)

    for _ in range(100):
        if open_protocols() == before:
            break
        await asyncio.sleep(0.05)
    assert open_protocols() == before
