"""Clients that do not read, and clients that do not finish what they send."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub


@pytest.fixture
def stub() -> Iterator[StubWorker]:
    with running_stub(StubWorker(uid="w0")) as running:
        yield running


def address(router: RunningRouter) -> tuple[str, int]:
    host, _, port = router.url.removeprefix("http://").rpartition(":")
    return host, int(port)


def request(**fields: object) -> bytes:
    body = json.dumps({"model": "stub", "prompt": "hello", **fields}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


async def test_a_client_that_reads_a_byte_per_second_is_bounded_and_then_given_up(
    stub: StubWorker, tmp_path: Path
) -> None:
    # Given an answer of 64 MiB, and a client that takes a byte of it per second
    stub.events, stub.event_padding_bytes = 1024, 65_536
    async with running_router([stub], tmp_path, write_seconds=1.0) as router:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, address(router))
        await loop.sock_sendall(connection, request(stream=True))
        started = time.monotonic()

        # When it goes on for longer than one write may take
        while not stub.cancelled.is_set():
            assert time.monotonic() - started < 20, "the client is not given up"
            await loop.sock_recv(connection, 1)
            await asyncio.sleep(0.2)
            if time.monotonic() - started < 1:
                # Then others are served meanwhile
                stub.events, stub.event_padding_bytes = 3, 0
                assert (await router.ask("other", stream=True))[2].endswith(b"data: [DONE]\n\n")
        connection.close()

        # And of the 64 MiB the worker could send what the buffers on the way hold: a few MiB at most
        assert stub.written_events * 65_536 < 12 * 1024 * 1024
        await router.until_idle()
        assert "client left" in {one.outcome for one in router.router.routing.decisions.newest(50)}


async def test_nothing_is_kept_for_a_client_that_stands_still(
    stub: StubWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an answer of 64 MiB, and a client that takes nothing of it and stays
    monkeypatch.setattr("warmfleet_runtime.http.protocol.CLOSING_SECONDS", 0.5)
    stub.events, stub.event_padding_bytes = 1024, 65_536
    async with running_router([stub], tmp_path, write_seconds=0.5) as router:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(connection, address(router))
            await loop.sock_sendall(connection, request(stream=True))
            port = connection.getsockname()[1]
            await router.until(lambda: kernel_sockets(address(router)[1], port) == 1)

            # When it is given up, then its connection goes, with what the kernel had for it
            await router.until(stub.cancelled.is_set, seconds=20)
            await router.until(lambda: kernel_sockets(address(router)[1], port) == 0, seconds=10)
            await router.until_idle()


def kernel_sockets(local_port: int, remote_port: int) -> int:
    """Sockets of one end of a connection on the loopback, those without an owner included."""
    ends = (f":{local_port:04X}", f":{remote_port:04X}")
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(ends[0]) and row[2].endswith(ends[1]) for row in rows)


@pytest.mark.parametrize("part", ["head", "body"])
async def test_slow_requests_crowd_out_each_other_and_no_other_request(
    stub: StubWorker, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a router with room for 40 connections, and 100 that send a byte now and then
    monkeypatch.setattr("warmfleet_runtime.http.body.SLOW_START_SECONDS", 1.0)
    whole = request()
    start = whole[:40] if part == "head" else whole[:-5]
    limit = 40 if part == "head" else 200
    async with running_router([stub], tmp_path, max_connections=limit) as router:
        ended = 0

        async def drip() -> None:
            nonlocal ended
            reader, writer = await asyncio.open_connection(*address(router))
            try:
                writer.write(start)
                for _ in range(200):
                    writer.write(b"x" if part == "head" else b" ")
                    await writer.drain()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.05):
                            await reader.read(4096)
                            break
            except OSError:
                pass
            finally:
                ended += 1
                writer.transport.abort()

        drips = [asyncio.create_task(drip()) for _ in range(100)]
        await asyncio.sleep(0.2)

        # When others ask, each on a connection of its own
        answers = [await router.ask("hello", headers={"connection": "close"}) for _ in range(20)]

        # Then all are answered, and the slow ones lose their connections
        assert [status for status, _, _ in answers] == [200] * 20
        expected = 60 if part == "head" else 100
        await router.until(lambda: ended >= expected, seconds=10)
        for task in drips:
            task.cancel()
        await asyncio.gather(*drips, return_exceptions=True)
        await asyncio.sleep(0.05)


async def test_beyond_the_limit_of_busy_connections_one_is_refused_with_the_reason(
    stub: StubWorker, tmp_path: Path
) -> None:
    stub.faults.hold_headers = True
    async with running_router([stub], tmp_path, max_connections=2) as router:
        busy = [await asyncio.open_connection(*address(router)) for _ in range(2)]
        for _, writer in busy:
            writer.write(request())
        await router.until(lambda: len(stub.requests) == 2)

        reader, writer = await asyncio.open_connection(*address(router))
        answer = await reader.read()

        assert answer.startswith(b"HTTP/1.1 503 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "overloaded"
        for _, one in [*busy, (reader, writer)]:
            one.close()
