"""One key's attack on a router: thousands of sockets that cost the attacker next to nothing.

It opens at most `--sockets` connections to a loopback address, with one request on each, for `--seconds`,
and prints how each ended as one line of JSON. The key comes from $WARMFLEET_API_KEY.

- idle: a head that declares 32 MiB, and nothing after it;
- chunked: half a megabyte of a chunked body, then one byte every few seconds, without an end;
- tokenize: `/tokenize` and `/detokenize` with 64 KiB;
- wide: completions of nine prompts, one more than a worker has seats for, and of eight choices;
- large: prompts of 4 MB, beyond any context;
- leaving: ordinary streams whose client leaves at a random moment, half of them with a reset;
- all: all of these at once.

With PYTHONPATH=benchmarks:

    python -m harness.hostile_client --url http://127.0.0.1:8080 --model NAME --kind idle --seconds 20
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

import uvloop

from warmfleet_contracts.names import API_KEY_VARIABLE

ALL: Final = "all"
COMPLETIONS: Final = "/v1/completions"
TRICKLE_SECONDS: Final = 8.0
NICENESS: Final = 10
"""The light client and the workers come first: it is the router that is measured."""
RESET: Final = struct.pack("ii", 1, 0)
"""Option SO_LINGER with which close sends RST."""
DISTINCT_LARGE_PROMPTS: Final = 4


@dataclass(frozen=True, slots=True)
class Attack:
    """One request of a socket."""

    content: bytes
    """What is written at once."""
    trickle: bytes = b""
    """Written every `TRICKLE_SECONDS` from then on."""
    leaves_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of attack goes."""

    max_sockets: int
    per_second: float
    """Requests that begin, at most: what bounds the attacker's own work."""
    attacks: Callable[["Requests"], Iterator[Attack]]


class Requests:
    """Writes requests with the attacker's key."""

    def __init__(self, host: str, model: str, key: str, draw: random.Random) -> None:
        self._head = (
            f"host: {host}\r\nauthorization: Bearer {key}\r\n"
            "content-type: application/json\r\nconnection: close\r\n"
        )
        self._model = model
        self.draw = draw

    def head(self, path: str, field: str) -> bytes:
        return f"POST {path} HTTP/1.1\r\n{self._head}{field}\r\n\r\n".encode()

    def whole(self, path: str, fields: Mapping[str, Any]) -> bytes:
        body = json.dumps({"model": self._model, **fields}).encode()
        return self.head(path, f"content-length: {len(body)}") + body

    def prompt(self, tokens: int) -> list[int]:
        return self.draw.choices(range(1000, 40_000), k=tokens)


def idle(requests: Requests) -> Iterator[Attack]:
    head = requests.head(COMPLETIONS, f"content-length: {32 * 2**20}")
    while True:
        yield Attack(head)


def chunked(requests: Requests) -> Iterator[Attack]:
    piece = b"%x\r\n%b\r\n" % (2**16, b'{"prompt": "' + b"x" * (2**16 - 12))
    content = requests.head(COMPLETIONS, "transfer-encoding: chunked") + piece * 8
    while True:
        yield Attack(content, trickle=b"1\r\nx\r\n")


def tokenize(requests: Requests) -> Iterator[Attack]:
    text = requests.whole("/tokenize", {"prompt": "many words, " * (2**16 // 12)})
    tokens = requests.whole("/detokenize", {"tokens": requests.prompt(2**16 // 7)})
    while True:
        yield Attack(text)
        yield Attack(tokens)


def wide(requests: Requests) -> Iterator[Attack]:
    while True:
        prompts = [requests.prompt(16) for _ in range(9)]
        yield Attack(requests.whole(COMPLETIONS, {"prompt": prompts, "max_tokens": 16, "stream": True}))
        choices = {"n": 8, "temperature": 1, "max_tokens": 16}
        yield Attack(requests.whole(COMPLETIONS, {"prompt": requests.prompt(16), **choices}))


def large(requests: Requests) -> Iterator[Attack]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(requests.draw.choices(letters, k=requests.draw.randrange(2, 9))) for _ in range(10_000)]
    bodies = []
    for _ in range(DISTINCT_LARGE_PROMPTS):
        text = " ".join(requests.draw.choices(words, k=4_000_000 // 6))[:4_000_000]
        bodies.append(requests.whole(COMPLETIONS, {"prompt": text, "max_tokens": 16}))
    while True:
        yield from map(Attack, bodies)


def leaving(requests: Requests) -> Iterator[Attack]:
    while True:
        content = requests.whole(
            COMPLETIONS, {"prompt": requests.prompt(64), "max_tokens": 16, "stream": True}
        )
        yield Attack(content, leaves_after_seconds=requests.draw.uniform(0, 0.5))


KINDS: Final[Mapping[str, Kind]] = {
    "idle": Kind(4096, 500, idle),
    "chunked": Kind(4096, 250, chunked),
    "tokenize": Kind(512, 200, tokenize),
    "wide": Kind(512, 100, wide),
    "large": Kind(32, 4, large),
    "leaving": Kind(512, 150, leaving),
}


class _Socket(asyncio.Protocol):
    """Reads the status of the answer and drops the rest."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.status = ""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self.status:
            self.status = data[9:12].decode("latin-1")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(exc)


class HostileClient:
    """Keeps the sockets of some kinds busy and counts how each ended."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 80)
        self._outcomes: Counter[str] = Counter()

    async def attack(self, kind: Kind, requests: Requests, *, sockets: int, seconds: float) -> None:
        """Attack in the way of `kind` over at most `sockets` connections at once, then leave."""
        now = asyncio.get_running_loop().time
        attacks, free = kind.attacks(requests), asyncio.Semaphore(sockets)
        until = now() + seconds
        open_now: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.timeout_at(until):
                while True:
                    await free.acquire()
                    task = asyncio.create_task(self._one(next(attacks)))
                    open_now.add(task)
                    task.add_done_callback(open_now.discard)
                    task.add_done_callback(lambda _: free.release())
                    await asyncio.sleep(1 / kind.per_second)
        except TimeoutError:
            pass
        finally:
            left = list(open_now)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    @property
    def outcomes(self) -> Mapping[str, int]:
        """How many requests ended how: by status, or in words."""
        return dict(self._outcomes.most_common())

    async def _one(self, attack: Attack) -> None:
        outcome = "open at the end"
        try:
            outcome = await self._outcome(attack)
        except OSError:
            outcome = "not connected"
        finally:
            self._outcomes[outcome] += 1

    async def _outcome(self, attack: Attack) -> str:
        loop = asyncio.get_running_loop()
        _, one = await loop.create_connection(_Socket, *self._address)
        reset = False
        try:
            one.transport.write(attack.content)
            if attack.leaves_after_seconds is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(one.ended), attack.leaves_after_seconds)
                reset = random.random() < 0.5
                return "left" if not one.ended.done() else one.status or "closed"
            while not one.ended.done():
                await asyncio.wait({one.ended}, timeout=TRICKLE_SECONDS)
                if attack.trickle and not one.transport.is_closing():
                    one.transport.write(attack.trickle)
            return one.status or "closed"
        finally:
            if reset and not one.transport.is_closing():
                one.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            one.transport.abort()


async def run(options: argparse.Namespace) -> dict[str, dict[str, int]]:
    """Attack in one way, or in all; the outcomes by kind."""
    kinds = KINDS if options.kind == ALL else {options.kind: KINDS[options.kind]}
    requests = Requests(
        urlsplit(options.url).netloc, options.model, os.environ[API_KEY_VARIABLE], random.Random(options.seed)
    )
    clients = {name: HostileClient(options.url) for name in kinds}
    async with asyncio.TaskGroup() as tasks:
        for name, kind in kinds.items():
            sockets = min(kind.max_sockets, options.sockets) // len(kinds)
            tasks.create_task(
                clients[name].attack(kind, requests, sockets=max(sockets, 1), seconds=options.seconds)
            )
    return {name: dict(client.outcomes) for name, client in clients.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", required=True, help="a router on 127.0.0.1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--kind", choices=(*KINDS, ALL), required=True)
    parser.add_argument("--sockets", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if urlsplit(options.url).hostname != "127.0.0.1":
        parser.error("--url: only a router on 127.0.0.1 is attacked")
    os.nice(NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    outcomes = uvloop.run(run(options))
    print(json.dumps({"outcomes": outcomes, "cpu_seconds": time.process_time()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
