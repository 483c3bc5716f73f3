"""Greedy streams by a client that never tries again: at a steady rate, or many at once that wait for long."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import httpx

from warmfleet_testing.cluster.installed import chat_request
from warmfleet_testing.processes.plain_http import NO_TLS

STREAMS_PER_SECOND: Final = 5.0
MAX_STREAMS: Final = 1500
STREAM_SECONDS: Final = 60.0
HELD_SECONDS: Final = 180.0
"""Longer than any model of a test needs to wake."""


@dataclass
class StreamedAnswer:
    """One stream, while it is read and afterwards."""

    prompt: str
    text: str = ""
    events: int = 0
    error: str = ""
    """Why it is no whole answer; empty for one that ended with its last event."""
    complete: bool = False
    sent: float = field(default_factory=time.monotonic)
    first: float = float("inf")
    """When its first text came."""
    ended: float = float("inf")


async def read_stream(client: httpx.AsyncClient, body: Mapping[str, object], answer: StreamedAnswer) -> None:
    """Send one streaming request and follow its answer into `answer`; no error leaves this."""
    try:
        async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
            if response.status_code != httpx.codes.OK:
                answer.error = f"{response.status_code}: {(await response.aread()).decode(errors='replace')}"
                return
            async for line in response.aiter_lines():
                _take(line, answer)
        if not answer.complete and not answer.error:
            answer.error = f"ended after {answer.events} events without the last one"
    except httpx.HTTPError as error:
        answer.error = repr(error)
    finally:
        answer.ended = time.monotonic()


def _take(line: str, answer: StreamedAnswer) -> None:
    if not line.startswith("data: "):
        return
    data = line.removeprefix("data: ")
    if data == "[DONE]":
        answer.complete = True
        return
    event = json.loads(data)
    if "error" in event:
        answer.error = data
        return
    answer.events += 1
    answer.text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    if answer.text and answer.first == float("inf"):
        answer.first = time.monotonic()


class SteadyLoad:
    """Starts a stream every so often until it is stopped; a thread of its own."""

    def __init__(self, url: str, model: str, prompts: Sequence[str], *, tokens: int) -> None:
        self.answers: list[StreamedAnswer] = []
        self._url, self._model, self._prompts, self._tokens = url, model, prompts, tokens
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)

    @property
    def failed(self) -> list[StreamedAnswer]:
        return [answer for answer in self.answers if answer.error]

    @property
    def open(self) -> int:
        return sum(answer.ended == float("inf") for answer in self.answers)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Start no more; returns when every stream has ended."""
        self._stop.set()
        self._thread.join(2 * STREAM_SECONDS)
        assert not self._thread.is_alive(), "a stream does not end"

    async def _run(self) -> None:
        async with (
            httpx.AsyncClient(
                base_url=self._url, timeout=STREAM_SECONDS, verify=NO_TLS, trust_env=False
            ) as client,
            asyncio.TaskGroup() as streams,
        ):
            began = time.monotonic()
            while not self._stop.is_set() and len(self.answers) < MAX_STREAMS:
                answer = StreamedAnswer(self._prompts[len(self.answers) % len(self._prompts)])
                self.answers.append(answer)
                body = chat_request(self._model, answer.prompt, max_tokens=self._tokens, ignore_eos=True)
                streams.create_task(read_stream(client, body, answer))
                due = began + len(self.answers) / STREAMS_PER_SECOND
                await asyncio.sleep(max(due - time.monotonic(), 0))


@contextmanager
def steady_load(url: str, model: str, prompts: Sequence[str], *, tokens: int = 48) -> Iterator[SteadyLoad]:
    """Under this load the body runs; what came of the streams is known after it."""
    load = SteadyLoad(url, model, prompts, tokens=tokens)
    load.start()
    try:
        yield load
    finally:
        load.finish()


class OpenStream:
    """One long stream, read in a thread of its own."""

    def __init__(self, url: str, model: str, prompt: str, *, tokens: int, ignore_eos: bool = True) -> None:
        self.answer = StreamedAnswer(prompt)
        self._url = url
        self._body = chat_request(model, prompt, max_tokens=tokens, ignore_eos=ignore_eos)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="stream", daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        async with httpx.AsyncClient(
            base_url=self._url, timeout=STREAM_SECONDS, verify=NO_TLS, trust_env=False
        ) as client:
            await read_stream(client, self._body, self.answer)

    @property
    def is_open(self) -> bool:
        return self.answer.ended == float("inf")

    def wait(self) -> StreamedAnswer:
        """The whole answer."""
        with suppress(RuntimeError):
            self._thread.join(STREAM_SECONDS)
        assert not self.is_open
        return self.answer


class HeldStreams:
    """Sends the streams in a thread of its own; each waits until it is answered."""

    def __init__(
        self,
        urls: Sequence[str],
        model: str,
        prompts: Sequence[str],
        *,
        requests: int,
        spread_seconds: float,
        tokens: int,
    ) -> None:
        self.answers: list[StreamedAnswer] = []
        self._urls, self._model, self._prompts, self._tokens = urls, model, prompts, tokens
        self._requests, self._spread_seconds = requests, spread_seconds
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="held", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        """Until every stream has ended."""
        self._thread.join(2 * HELD_SECONDS)
        assert not self._thread.is_alive(), "a stream does not end"

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        clients = [
            httpx.AsyncClient(
                base_url=url, timeout=HELD_SECONDS, verify=NO_TLS, trust_env=False, limits=limits
            )
            for url in self._urls
        ]
        try:
            async with asyncio.TaskGroup() as streams:
                for number in range(self._requests):
                    answer = StreamedAnswer(self._prompts[number % len(self._prompts)])
                    self.answers.append(answer)
                    body = chat_request(self._model, answer.prompt, max_tokens=self._tokens, ignore_eos=True)
                    streams.create_task(read_stream(clients[number % len(clients)], body, answer))
                    await asyncio.sleep(self._spread_seconds / self._requests)
        finally:
            await asyncio.gather(*(client.aclose() for client in clients))


@contextmanager
def held_streams(
    urls: Sequence[str],
    model: str,
    prompts: Sequence[str],
    *,
    requests: int,
    spread_seconds: float = 0.5,
    tokens: int = 16,
) -> Iterator[HeldStreams]:
    """While the streams wait the body runs; all have ended after it.

    Args:
        urls: of the routers, which get the streams in turn.
        model: the name that requests ask for.
        prompts: taken in turn.
        requests: how many streams.
        spread_seconds: over which they are sent, the first one at once.
        tokens: of each answer.
    """
    load = HeldStreams(urls, model, prompts, requests=requests, spread_seconds=spread_seconds, tokens=tokens)
    load.start()
    try:
        yield load
    finally:
        load.wait()
