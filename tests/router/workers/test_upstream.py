"""The upstream client against sockets that misbehave."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from warmfleet_router.discovery.base import Endpoint
from warmfleet_router.errors import StreamUnavailableError
from warmfleet_router.proxy.headers import request_headers, without_cache_salt
from warmfleet_router.workers.liveness import LivenessSettings, LivenessSweeper, LivenessWatch
from warmfleet_router.workers.upstream import (
    Upstream,
    UpstreamBrokenError,
    UpstreamTooLargeError,
    UpstreamUnreachableError,
)
from warmfleet_testing.processes.process_sockets import internet_sockets

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 10\r\n\r\n"


class Peer:
    """A server that sends `script` in pieces: bytes to write, None to stay silent."""

    def __init__(self, *script: bytes | None) -> None:
        self.script = script
        self.received = b""
        self.closed = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.received = await reader.readuntil(b"\r\n\r\n")
            for piece in self.script:
                if piece is None:
                    await reader.read()
                    self.closed.set()
                else:
                    writer.write(piece)
                    await writer.drain()
        finally:
            writer.close()


@pytest.fixture
async def upstream() -> AsyncGenerator[Upstream, None]:
    liveness = LivenessWatch(LivenessSettings(answer_seconds=0.5))
    sweeper = LivenessSweeper(liveness, worker_silence=lambda _: 0.0, on_hung=lambda _: None)
    client = Upstream(connect_seconds=1.0, liveness=liveness)
    await sweeper.start()
    await client.start()
    yield client
    await client.stop()
    await sweeper.stop()


async def serve(peer: Peer) -> tuple[asyncio.Server, Endpoint]:
    server = await asyncio.start_server(peer.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    return server, Endpoint(uid="w", name="w", url=f"http://127.0.0.1:{port}", token=b"secret")


async def read(upstream: Upstream, endpoint: Endpoint, limit_bytes: int = 1000) -> bytes:
    async with upstream.request(endpoint, "GET", "/x") as response:
        return await response.body(limit_bytes)


async def test_what_a_stopped_worker_takes_nothing_of_is_given_up_after_a_while(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is closed sends what it still has, and keeps all of it until then."""
    monkeypatch.setattr("warmfleet_router.workers.upstream.SILENT_SECONDS", 1)

    with socket.create_server(("127.0.0.1", 0)) as stopped:
        port = stopped.getsockname()[1]
        endpoint = Endpoint(uid="w", name="w", url=f"http://127.0.0.1:{port}", token=b"secret")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2), upstream.request(endpoint, "POST", "/x", body=b"x" * 32_000_000):
                pass

        def is_open() -> bool:
            return any(one.remote_port == port for one in internet_sockets(os.getpid()))

        assert is_open()
        async with asyncio.timeout(20):
            while is_open():  # noqa: ASYNC110 - what is waited for happens in the kernel
                await asyncio.sleep(0.1)


async def test_an_answer_is_read_with_the_workers_token(upstream: Upstream) -> None:
    peer = Peer(HEAD + b"0123456789")
    server, endpoint = await serve(peer)
    async with server:
        assert await read(upstream, endpoint) == b"0123456789"

    assert b"Authorization: Bearer secret" in peer.received


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ((b"",), UpstreamUnreachableError),
        ((HEAD + b"012",), UpstreamBrokenError),
        ((HEAD + b"012", None), UpstreamBrokenError),
    ],
    ids=["closed before headers", "closed in the body", "silent in the body"],
)
async def test_a_fault_shows_how_far_the_answer_came(
    upstream: Upstream, script: tuple[bytes | None, ...], error: type[Exception]
) -> None:
    server, endpoint = await serve(Peer(*script))
    async with server:
        with pytest.raises(error) as raised:
            await read(upstream, endpoint)

    assert "127.0.0.1" not in str(raised.value)


async def test_a_refused_connection_is_unreachable(upstream: Upstream) -> None:
    with pytest.raises(UpstreamUnreachableError, match="refused"):
        await read(upstream, Endpoint(uid="w", name="w", url="http://127.0.0.1:9"))


async def test_a_body_is_bounded(upstream: Upstream) -> None:
    server, endpoint = await serve(Peer(HEAD + b"0123456789"))
    async with server:
        with pytest.raises(UpstreamTooLargeError):
            await read(upstream, endpoint, limit_bytes=9)


async def test_silence_before_the_headers_is_the_clients_business(upstream: Upstream) -> None:
    peer = Peer(None)
    server, endpoint = await serve(peer)
    async with server:
        asking = asyncio.create_task(read(upstream, endpoint))
        await asyncio.sleep(0.8)
        assert not asking.done()

        asking.cancel()

        await asyncio.wait_for(peer.closed.wait(), 10)


async def test_leaving_an_event_stream_closes_its_connection(upstream: Upstream) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    peer = Peer(head + b"3\r\nabc\r\n", None)
    server, endpoint = await serve(peer)
    async with server:
        stream = upstream.open(endpoint, "epoch", 7, b"n" * 16, {1, 2})
        assert await anext(stream) == b"abc"

        await stream.aclose()

        await asyncio.wait_for(peer.closed.wait(), 10)
    assert b"GET /internal/kv-events?epoch=epoch&after=7 " in peer.received
    assert b"x-warmfleet-nonce: " + b"6e" * 16 in peer.received
    assert b"x-warmfleet-versions: 1,2\r\n" in peer.received


async def test_a_refused_event_stream_is_unavailable(upstream: Upstream) -> None:
    server, endpoint = await serve(Peer(b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"))
    async with server:
        with pytest.raises(StreamUnavailableError, match="401"):
            await anext(upstream.open(endpoint, "", 0, b"n", {1, 2}))


def test_headers_named_by_connection_do_not_pass() -> None:
    raw = [(b"Connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"X-Warmfleet-Seed", b"1"), (b"a", b"b")]

    assert request_headers(raw) == [("a", "b")]


def test_only_the_cache_salt_leaves_the_body() -> None:
    body = b'{"model":"m","cache_salt":"s","big":12345678901234567890123,"f":1.10}'

    assert without_cache_salt(body) == b'{"model":"m","big":12345678901234567890123,"f":1.10}'
    assert without_cache_salt(b'{"a":  1}') == b'{"a":  1}'


def test_a_router_does_not_start_on_a_client_library_without_its_extension(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text("[]")
    command = [sys.executable, "-m", "warmfleet_router", "--port", "0"]

    finished = subprocess.run(
        [*command, "--endpoints-file", str(tmp_path / "endpoints.json")],
        env={**os.environ, "AIOHTTP_NO_EXTENSIONS": "1", "WARMFLEET_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert finished.returncode == 2
    assert finished.stdout == "", "nothing is announced"
    (logged,) = map(json.loads, finished.stderr.splitlines())
    assert (logged["event"], logged["level"]) == ("cannot start", "error")
    assert "aiohttp" in logged["reason"]
    assert "no C extension" in logged["reason"]
