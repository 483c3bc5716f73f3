"""Streams of server-sent events: headers, keep-alive comments, and writes as far as a client takes them."""

import asyncio
from functools import partial
from types import TracebackType
from typing import Final, Self

from warmfleet_runtime.http.response_body import ResponseBody

EVENT_STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Raw headers of the response. The last one keeps nginx from collecting the events before it sends them."""
PING: Final = b": ping\n\n"
"""A comment line, which clients ignore: it keeps proxies from closing a connection as idle."""


class SlowClientError(Exception):
    """The client did not take a write in time."""


class EventWriter:
    """Writes to one stream that has begun, in the step that has the events; the end of `with` ends the pings.

    A timer per stream, and none per event, sees when a ping is due.
    """

    def __init__(self, body: ResponseBody, *, ping_seconds: float, write_seconds: float) -> None:
        """`write_seconds`: how long a client may take nothing that is written."""
        self._body = body
        self._ping_seconds = ping_seconds
        self._write_seconds = write_seconds
        self._loop = asyncio.get_running_loop()
        self._written_at = self._loop.time()
        self._timer = self._loop.call_later(ping_seconds, self._ping_if_quiet)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()

    async def write(self, events: bytes) -> None:
        """Write whole events, at once unless the client has too much to read.

        Raises:
            SlowClientError: it did not take them in time.
        """
        self._written_at = self._loop.time()
        while not self._body.write(events):
            await self._writable()

    async def _writable(self) -> None:
        writable = self._loop.create_future()
        self._body.when_writable(partial(_complete, writable))
        try:
            async with asyncio.timeout(self._write_seconds):
                await writable
        except TimeoutError as error:
            raise SlowClientError from error
        finally:
            self._body.when_writable(None)

    def _ping_if_quiet(self) -> None:
        left_seconds = self._written_at + self._ping_seconds - self._loop.time()
        if left_seconds <= 0:
            self._body.write(PING)  # one that is not taken is not needed: there is enough to read
            self._written_at = self._loop.time()
            left_seconds = self._ping_seconds
        self._timer = self._loop.call_later(left_seconds, self._ping_if_quiet)


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
