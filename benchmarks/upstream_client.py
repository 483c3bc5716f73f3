"""Which HTTP client should carry the router's upstream streams: httpx or aiohttp?

A stub server in its own process streams server-sent events over chunked HTTP/1.1 on loopback; this process
opens 256 streams at once with each client in turn and reads them to the end, as the proxy does. What counts
is this process's CPU time per event: the router is one event loop, so CPU time is its ceiling, and on a
shared machine it is steadier than wall time.

    python benchmarks/upstream_client.py [--streams 256] [--events 200] [--rounds 3]
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from multiprocessing.connection import Connection

import aiohttp
import httpx
import uvloop

EVENT = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","choices":[{"delta":{"content":"x"}}]}\n\n'
)
CHUNK = f"{len(EVENT):x}".encode() + b"\r\n" + EVENT + b"\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PAUSE_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Round:
    wall_seconds: float
    cpu_microseconds_per_event: float
    first_byte_p50_ms: float
    first_byte_p99_ms: float
    open_only_ms: float
    """Mean milliseconds of client CPU for a request that answers at once, without a stream."""


def serve(channel: Connection, events: int) -> None:
    """Answer every request with `events` events, one write each, `PAUSE_SECONDS` apart."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                await reader.readexactly(length)
                writer.write(HEAD)
                for _ in range(0 if b"/short" in head else events):
                    writer.write(CHUNK)
                    await asyncio.sleep(PAUSE_SECONDS)
                writer.write(b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        channel.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


async def with_aiohttp(url: str, body: bytes, streams: int) -> tuple[list[float], int]:
    """Seconds to the first byte of each stream, and the bytes that all of them brought."""
    first: list[float] = []

    async def one(session: aiohttp.ClientSession) -> int:
        started = time.perf_counter()
        size = 0
        async with session.post(url, data=body) as response:
            async for chunk in response.content.iter_any():
                if size == 0:
                    first.append(time.perf_counter() - started)
                size += len(chunk)
        return size

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
        sizes = await asyncio.gather(*(one(session) for _ in range(streams)))
    return first, sum(sizes)


async def with_httpx(url: str, body: bytes, streams: int) -> tuple[list[float], int]:
    """The same through httpx, reading raw bytes."""
    first: list[float] = []

    async def one(client: httpx.AsyncClient) -> int:
        started = time.perf_counter()
        size = 0
        async with client.stream("POST", url, content=body) as response:
            async for chunk in response.aiter_raw():
                if size == 0:
                    first.append(time.perf_counter() - started)
                size += len(chunk)
        return size

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:
        sizes = await asyncio.gather(*(one(client) for _ in range(streams)))
    return first, sum(sizes)


Client = Callable[[str, bytes, int], Coroutine[None, None, tuple[list[float], int]]]
CLIENTS: dict[str, Client] = {"aiohttp": with_aiohttp, "httpx": with_httpx}


def measure(client: Client, base_url: str, *, streams: int, events: int) -> Round:
    """One round of `streams` concurrent streams in a fresh event loop."""
    body = json.dumps({"prompt": "x" * 8_000}).encode()
    started, cpu = time.perf_counter(), _cpu_seconds()
    first, size = uvloop.run(client(f"{base_url}/stream", body, streams))
    wall, cpu = time.perf_counter() - started, _cpu_seconds() - cpu
    if size != streams * events * len(EVENT):
        raise SystemExit(f"lost bytes: {size}")
    short_cpu = _cpu_seconds()
    uvloop.run(client(f"{base_url}/short", body, streams))
    short_cpu = _cpu_seconds() - short_cpu
    ranked = sorted(first)
    return Round(
        wall_seconds=wall,
        cpu_microseconds_per_event=cpu / (streams * events) * 1e6,
        first_byte_p50_ms=statistics.median(ranked) * 1e3,
        first_byte_p99_ms=ranked[int(len(ranked) * 0.99) - 1] * 1e3,
        open_only_ms=short_cpu / streams * 1e3,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, options.events))
    server.start()
    try:
        base_url = f"http://127.0.0.1:{ours.recv()}"
        rounds: dict[str, list[Round]] = {name: [] for name in CLIENTS}
        for _ in range(options.rounds):  # interleaved, so that a noisy minute hits both
            for name, client in CLIENTS.items():
                rounds[name].append(measure(client, base_url, streams=options.streams, events=options.events))
    finally:
        server.terminate()
        server.join()
    print(f"{options.streams} streams x {options.events} events, median of {options.rounds} rounds")
    fields = tuple(Round.__dataclass_fields__)
    print(f"{'client':10}" + "".join(f"{field:>28}" for field in fields))
    for name, measured in rounds.items():
        values = (statistics.median(getattr(entry, field) for entry in measured) for field in fields)
        print(f"{name:10}" + "".join(f"{value:28.2f}" for value in values))


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
