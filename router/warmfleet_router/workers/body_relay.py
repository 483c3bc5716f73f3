"""Takes the body of a worker's answer from its connection's callback to a receiver, with no task in between.

A task that reads a stream costs, for each token, a future, a turn of the event loop and a step of every
coroutine down to the reader: several times what is done with the token. Here the connection calls the
receiver. The client library still parses, bounds what is read ahead, and keeps or closes the connection.

Its parser is spared what arrives as one whole chunk between two others, as nearly every token does: that goes
to the receiver with its framing. What is anything else, and what comes while the receiver takes nothing, the
parser gets.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import aiohttp

from warmfleet_router.workers.liveness import WatchedRead

LARGEST_CHUNK_BYTES: Final = 4095
"""A larger one is parsed by the client library."""


def _size_lines() -> dict[int, bytes]:
    lines = [(size, b"%x\r\n" % size) for size in range(1, LARGEST_CHUNK_BYTES + 1)]
    return {len(line) + size + len(b"\r\n"): line for size, line in lines}


_SIZE_LINES: Final = _size_lines()
"""A chunk's first line by the bytes of the whole chunk; not that of a body's last chunk, of no size."""


def content_start(data: bytes) -> int:
    """Where the content begins if `data` is one chunk of a body, framed as ours are; otherwise 0."""
    line = _SIZE_LINES.get(len(data))
    return len(line) if line is not None and data.startswith(line) and data.endswith(b"\r\n") else 0


class BodyReceiver(Protocol):
    """Gets a body as it arrives."""

    def receive(self, data: bytes, resume: Callable[[], None]) -> bool:
        """Whether it takes more; if not, nothing comes until it calls `resume`. Does not block."""
        ...

    def receive_chunk(self, chunk: bytes, start: int, resume: Callable[[], None]) -> bool:
        """As `receive`, for a part with its framing in HTTP/1.1: its content is `chunk[start:-2]`."""
        ...


class BodyRelay(asyncio.Protocol):
    """Stands in for the client library's protocol of a connection while the rest of a body is passed on.

    relay = BodyRelay(response, receiver)
    with liveness.body(uid, kind, give_up) as read:
        try:
            await relay.run(read)
        finally:
            relay.close()
    """

    def __init__(self, response: aiohttp.ClientResponse, receiver: BodyReceiver) -> None:
        self._content = response.content
        self._receiver = receiver
        self._read: WatchedRead | None = None
        """Counts while data is waited for; None before `run`, and after `close`."""
        self._seen_bytes = -1
        """Of the body, when it was read last."""
        self._is_blocked = False
        """Whether the receiver takes nothing."""
        self._is_between_chunks = False
        """The library's parser is, all that it parsed has been passed on, and the receiver takes more."""
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._library: asyncio.Protocol | None = None
        """The client library's protocol; None while it has the connection itself."""
        self._transport: asyncio.Transport | None = None
        connection = response.connection  # None once the library has the whole body
        if connection is not None and connection.transport is not None:
            self._library, self._transport = connection.protocol, connection.transport
            self._transport.set_protocol(self)

    async def run(self, read: WatchedRead) -> None:
        """Pass on what has arrived, and then what arrives, to the end of the body.

        Raises:
            aiohttp.ClientError, OSError: the connection broke.
            Exception: what `fail` was given, and what `receive` raised.
        """
        self._read = read
        read.begin()
        self._pass_on()
        await self._ended

    def fail(self, error: Exception) -> None:
        """End the body with `error`."""
        self._is_between_chunks = False
        self._content.set_exception(error)
        self._pass_on()

    def close(self) -> None:
        """Give the connection back to the client library; nothing is passed on any more. Idempotent."""
        self._give_back()
        self._read = None

    def data_received(self, data: bytes) -> None:
        if self._is_between_chunks and (start := content_start(data)):
            self._pass_chunk_on(data, start)
            return
        assert self._library is not None
        self._library.data_received(data)
        if self._content.is_eof():
            self._give_back()  # by now the library has it in its pool
        passed = self._pass_on()
        # What came out is the content of what went in, as one chunk: the parser began and ended between two.
        # If a worker managed to pretend that, the library would find no end, and close the connection.
        start = content_start(data)
        self._is_between_chunks = passed is not None and start > 0 and passed == data[start:-2]

    def eof_received(self) -> bool | None:
        assert self._library is not None
        return self._library.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_between_chunks = False
        library, self._library, self._transport = self._library, None, None
        assert library is not None
        library.connection_lost(exc)
        self._pass_on()

    def pause_writing(self) -> None:
        assert self._library is not None
        self._library.pause_writing()

    def resume_writing(self) -> None:
        assert self._library is not None
        self._library.resume_writing()

    def _resume(self) -> None:
        self._is_blocked = False
        if self._read is not None:
            self._read.begin()
        self._pass_on()

    def _pass_chunk_on(self, chunk: bytes, start: int) -> None:
        read = self._read
        assert read is not None
        read.begin()
        try:
            if self._receiver.receive_chunk(chunk, start, self._resume):
                return
        except Exception as error:  # noqa: BLE001 - `run` raises it
            self._ended.set_exception(error)
        else:
            self._is_blocked = True
        self._is_between_chunks = False
        read.end()

    def _pass_on(self) -> bytes | None:
        """Pass on what the library has parsed; what that was, None if the receiver takes no more."""
        read = self._read
        if read is None or self._is_blocked or self._ended.done():
            return None
        content, data = self._content, b""
        try:
            while content.total_bytes != self._seen_bytes or content.exception() is not None:
                self._seen_bytes = content.total_bytes
                data = content.read_nowait()  # raises the exception
                read.begin()
                if data and not self._receiver.receive(data, self._resume):
                    # While a slow client holds us up, the silence is ours. The library goes on reading until
                    # it has its bound.
                    read.end()
                    self._is_blocked = True
                    return None
        except Exception as error:  # noqa: BLE001 - `run` raises it
            read.end()
            self._ended.set_exception(error)
            return None
        if content.at_eof():
            read.end()
            self._ended.set_result(None)
            return None
        return data

    def _give_back(self) -> None:
        self._is_between_chunks = False
        library, transport, self._library, self._transport = self._library, self._transport, None, None
        if library is not None and transport is not None:
            transport.set_protocol(library)
