"""The one response to a client: its start is sent once, whoever comes first.

A stream to which nothing has been sent for a while, because the request is held or its worker computes, gets
its headers and a comment line, and another one as often, until a worker's first event. From then on a refusal
can only be an event of the stream.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from starlette.types import Send

from warmfleet_contracts.openai import RequestError

RawHeaders = Sequence[tuple[bytes, bytes]]

PING: Final = b": ping\n\n"
STREAM_HEADERS: Final[RawHeaders] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
USAGE_BYTES: Final = 4096
"""The usage stands at the end of a plain answer."""
_COMPLETION_TOKENS: Final = re.compile(rb'"completion_tokens":\s*(\d{1,9})')


class ClientStalledError(Exception):
    """The client did not take a write in time."""


class ClientAnswer:
    """Writes to one client. `with` ends the pings."""

    def __init__(self, send: Send, *, write_seconds: float, ping_seconds: float | None) -> None:
        """`ping_seconds`: None for an answer that is no stream."""
        self.on_stalled: Callable[[], object] = _ignored
        """Called when the client took no ping in time."""
        self.started = False
        """Whether the response's start has been sent."""
        self._send = send
        self._write_seconds = write_seconds
        self._ping_seconds = ping_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._set_timer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ping_seconds = None
        if self._timer is not None:
            self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()

    async def start(self, status: int, headers: RawHeaders) -> None:
        """Send the response's start, unless the pings have done so; there are no more pings."""
        await self._end_pings()
        await self._start(status, headers)

    async def write(self, body: bytes, *, more: bool) -> None:
        """Send a part of the body.

        Raises:
            ClientStalledError: it was not taken in time.
        """
        try:
            async with asyncio.timeout(self._write_seconds):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError as error:
            raise ClientStalledError from error

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ping is not None:
            # A ping under way is waited for: two writers at once would mix.
            await asyncio.wait({self._ping})
            self._ping = None

    def _set_timer(self) -> None:
        if self._ping_seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._ping_seconds, self._begin_ping)

    def _begin_ping(self) -> None:
        self._ping = asyncio.create_task(self._send_ping())

    async def _send_ping(self) -> None:
        try:
            await self._start(200, STREAM_HEADERS)
            await self.write(PING, more=True)
        except (ClientStalledError, OSError):
            self.on_stalled()
        else:
            self._set_timer()


def _ignored() -> None:
    pass


def generated_tokens(body: bytes) -> int | None:
    """The length that a plain answer gives in its usage; None if it gives none.

    Its text cannot pose as usage: a quote inside a JSON string has a backslash before it.
    """
    found = _COMPLETION_TOKENS.findall(body[-USAGE_BYTES:])
    return int(found[-1]) if found else None
