"""The one response to a client, whose start is sent once.

A stream to which nothing has been sent for a while, because the request waits or its worker computes, gets
its headers and a comment line, and another one as often, until a worker's first event. From then on an error
can only be an event of the stream.

A client that does not take a write in time is given up. One timer per response watches for that, not one per
write: there are thousands of those per second.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from starlette.types import Send

from warmfleet_contracts.openai import RequestError
from warmfleet_runtime.http.event_stream import EVENT_STREAM_HEADERS, PING
from warmfleet_runtime.http.response_body import ResponseBody

RawHeaders = Sequence[tuple[bytes, bytes]]


class ClientResponse:
    """Writes to one client; the end of `with` ends the watch over pings and writes."""

    def __init__(
        self,
        send: Send,
        body: ResponseBody,
        *,
        write_seconds: float,
        ping_seconds: float | None,
        on_stalled: Callable[[], object],
    ) -> None:
        """`ping_seconds`: None for an answer that is no stream.

        `on_stalled` is called when the client did not take a write in time, or a ping finds it gone.
        """
        self.started = False
        """Whether the response's start has been sent."""
        self._send = send
        self.body = body
        """For events of a stream that has started, written in the callback that brings them."""
        self._on_stalled = on_stalled
        self._write_seconds = write_seconds
        self._ping_seconds = ping_seconds
        self._loop = asyncio.get_running_loop()
        self._writing_since: float | None = None
        """On the loop's clock; None between writes."""
        self._write_timer = self._loop.call_later(write_seconds, self._watch_writes)
        self._ping_timer = self._next_ping()
        """None once there are no more pings."""
        self._ping: asyncio.Task[None] | None = None
        """The latest one; None before the first, and once there are no more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.body.when_writable(None)
        self._ping_seconds = None
        self._write_timer.cancel()
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        if self._ping is not None:
            self._ping.cancel()

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Send the response's start, unless the pings have done so; there are no more pings."""
        await self._end_pings()
        await self._start(status, headers)

    async def write(self, body: bytes, *, more: bool) -> None:
        """Send a part of the body; the watch calls `on_stalled` if it is not taken in time."""
        self._writing_since = self._loop.time()
        try:
            await self._send({"type": "http.response.body", "body": body, "more_body": more})
        finally:
            self._writing_since = None

    def keep(self, events: bytes, on_taken: Callable[[], None]) -> None:
        """Write what `body` did not take as soon as it does, and then call `on_taken`.

        Until then nothing else is to be written; the watch is the same as over `write`.
        """
        self._writing_since = self._loop.time()
        self.body.when_writable(partial(self._write_kept, events, on_taken))

    async def send_whole(self, status: int, headers: RawHeaders, pieces: Sequence[bytes]) -> None:
        """Send a whole answer, piece by piece: no more than one is passed on before the client takes it."""
        size_bytes = sum(map(len, pieces))
        await self.start(status, [*headers, (b"content-length", str(size_bytes).encode())])
        *first, last = pieces or (b"",)
        for piece in first:
            await self.write(piece, more=True)
        await self.write(last, more=False)

    async def refuse(self, error: RequestError) -> None:
        """End a stream that has been started with an error object."""
        await self.end_with_event(error.event())

    async def end_with_event(self, event: bytes) -> None:
        """End a stream that has been started with one last event."""
        await self._end_pings()
        await self.write(event, more=False)

    async def _start(self, status: int, headers: RawHeaders) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def _end_pings(self) -> None:
        self._ping_seconds = None
        if self._ping_timer is not None:
            self._ping_timer.cancel()
            self._ping_timer = None
        if self._ping is not None:
            # A ping under way is waited for: two writers at once would mix.
            await asyncio.wait({self._ping})
            self._ping = None

    def _write_kept(self, events: bytes, on_taken: Callable[[], None]) -> None:
        self._writing_since = None
        self.body.write(events)
        on_taken()

    def _watch_writes(self) -> None:
        since = self._writing_since
        left_seconds = self._write_seconds
        if since is not None:
            left_seconds -= self._loop.time() - since
        if left_seconds <= 0:
            self._on_stalled()
        else:
            self._write_timer = self._loop.call_later(left_seconds, self._watch_writes)

    def _next_ping(self) -> asyncio.TimerHandle | None:
        if self._ping_seconds is None:
            return None
        return self._loop.call_later(self._ping_seconds, self._begin_ping)

    def _begin_ping(self) -> None:
        self._ping = asyncio.create_task(self._send_ping())

    async def _send_ping(self) -> None:
        try:
            await self._start(200, EVENT_STREAM_HEADERS)
            await self.write(PING, more=True)
        except OSError:
            self._on_stalled()
        else:
            self._ping_timer = self._next_ping()
