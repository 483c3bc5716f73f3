"""Takes the body of a worker's answer from its connection's callback to a receiver, with no task in between.

A task that reads a stream costs, for each token, a future, a turn of the event loop and a step of every
coroutine down to the reader: several times what is done with the token. Here the connection calls the
receiver. The client library still parses, bounds what is read ahead, and keeps or closes the connection.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import aiohttp

from warmfleet_router.workers.liveness import WatchedRead


class BodyReceiver(Protocol):
    """Gets a body as it arrives."""

    def receive(self, data: bytes, resume: Callable[[], None]) -> bool:
        """Whether it takes more; if not, nothing comes until it calls `resume`. Does not block."""
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
        self._content.set_exception(error)
        self._pass_on()

    def close(self) -> None:
        """Give the connection back to the client library; nothing is passed on any more. Idempotent."""
        self._give_back()
        self._read = None

    def data_received(self, data: bytes) -> None:
        assert self._library is not None
        self._library.data_received(data)
        if self._content.is_eof():
            self._give_back()  # by now the library has it in its pool
        self._pass_on()

    def eof_received(self) -> bool | None:
        assert self._library is not None
        return self._library.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
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

    def _pass_on(self) -> None:
        read = self._read
        if read is None or self._is_blocked or self._ended.done():
            return
        content = self._content
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
                    return
        except Exception as error:  # noqa: BLE001 - `run` raises it
            read.end()
            self._ended.set_exception(error)
            return
        if content.at_eof():
            read.end()
            self._ended.set_result(None)

    def _give_back(self) -> None:
        library, transport, self._library, self._transport = self._library, self._transport, None, None
        if library is not None and transport is not None:
            transport.set_protocol(library)
