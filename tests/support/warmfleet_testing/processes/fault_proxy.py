"""A TCP proxy with faults, in the test's own event loop: what a network, or a peer, does at its worst.

`proxy.faults` may be changed at any time; bytes under way feel it at once. The proxy knows nothing of what
it carries.
"""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

READ_BYTES: Final = 65_536


@dataclass
class NetworkFaults:
    """What goes wrong now; all directions and connections alike by default."""

    refuse: bool = False
    """New connections are reset as soon as they are made."""
    blackhole: bool = False
    """Accepts, and from then on nothing passes in either direction; nothing is closed."""
    latency_seconds: float = 0.0
    jitter_seconds: float = 0.0
    """Each piece is late by `latency_seconds`, more or less up to this much; order is kept."""
    slice_bytes: int = 0
    """Pieces of this size, each in a segment of its own; 0 is as they come."""
    bytes_per_second: float = 0.0
    """Throttle, per direction of a connection; 0 is none."""
    corrupt_every_bytes: int = 0
    """Answers have every n-th byte flipped; 0 is none."""
    cut_after: bytes = b""
    """Once an answer has held this text, half of the next piece passes and its connection is cut."""
    cut_with_reset: bool = True
    """By RST; otherwise the answer's direction ends in order and the request's stays open."""


@dataclass(eq=False)
class _Connection:
    client: asyncio.StreamWriter
    upstream: asyncio.StreamWriter
    answered_bytes: int = 0
    is_doomed: bool = False


@dataclass
class FaultProxy:
    """One listening port in front of one address; `running_fault_proxy` starts it."""

    host: str
    port: int
    faults: NetworkFaults = field(default_factory=NetworkFaults)
    url: str = ""
    accepted: int = 0
    """Connections so far."""

    def __post_init__(self) -> None:
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._random = random.Random(0)

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    def reset_all(self) -> None:
        """Cut every connection now, both ways, as if its route were gone."""
        for connection in list(self._connections):
            reset(connection.client)
            reset(connection.upstream)

    def accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """One connection, from its first byte to its last."""
        self.accepted += 1
        task = asyncio.create_task(self._serve(reader, client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self.faults.refuse:
            reset(client)
            return
        connecting = asyncio.create_task(asyncio.open_connection(self.host, self.port))
        try:
            upstream_reader, upstream = await asyncio.shield(connecting)
        except OSError:
            reset(client)
            return
        except asyncio.CancelledError:
            # `open_connection` that is cancelled may leave a connection that is made and never closed.
            with suppress(OSError):
                reset((await connecting)[1])
            reset(client)
            raise
        connection = _Connection(client, upstream)
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._carry(reader, upstream, connection, is_answer=False),
                self._carry(upstream_reader, client, connection, is_answer=True),
            )
        except OSError:
            reset(client)
            reset(upstream)
        finally:
            self._connections.discard(connection)
            for writer in (client, upstream):
                writer.close()

    async def stop(self) -> None:
        """Cut everything and wait for it."""
        self.reset_all()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: _Connection,
        *,
        is_answer: bool,
    ) -> None:
        while data := await reader.read(READ_BYTES):
            size = self.faults.slice_bytes or len(data)
            for start in range(0, len(data), size):
                await self._pass(data[start : start + size], writer, connection, is_answer=is_answer)
                if writer.is_closing():
                    return
        await self._open_road()
        with suppress(OSError):
            writer.write_eof()

    async def _pass(
        self, piece: bytes, writer: asyncio.StreamWriter, connection: _Connection, *, is_answer: bool
    ) -> None:
        faults = self.faults
        if faults.latency_seconds or faults.jitter_seconds:
            jitter = self._random.uniform(-faults.jitter_seconds, faults.jitter_seconds)
            await asyncio.sleep(max(faults.latency_seconds + jitter, 0.0))
        if faults.bytes_per_second:
            await asyncio.sleep(len(piece) / faults.bytes_per_second)
        await self._open_road()
        if is_answer:
            if faults.corrupt_every_bytes:
                piece = self._corrupted(piece, connection.answered_bytes)
            is_last = connection.is_doomed
            connection.is_doomed |= bool(faults.cut_after) and faults.cut_after in piece
            if is_last:
                piece = piece[: len(piece) // 2]
            connection.answered_bytes += len(piece)
            if is_last:
                await self._cut(connection, piece)
                return
        writer.write(piece)
        await writer.drain()

    async def _open_road(self) -> None:
        while self.faults.blackhole:  # noqa: ASYNC110 - a test flips a plain switch
            await asyncio.sleep(0.01)

    async def _cut(self, connection: _Connection, last: bytes) -> None:
        connection.client.write(last)
        await connection.client.drain()
        if self.faults.cut_with_reset:
            await asyncio.sleep(0.02)  # a reset overtakes what the peer has not read yet
            reset(connection.client)
            reset(connection.upstream)
        else:
            with suppress(OSError):
                connection.client.write_eof()
            await asyncio.Event().wait()

    def _corrupted(self, piece: bytes, before: int) -> bytes:
        flipped = bytearray(piece)
        every = self.faults.corrupt_every_bytes
        for position in range(len(flipped)):
            if (before + position + 1) % every == 0:
                flipped[position] ^= 0xFF
        return bytes(flipped)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST instead of FIN."""
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.is_closing():
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def running_fault_proxy(upstream_url: str) -> AsyncGenerator[FaultProxy, None]:
    """A proxy in front of `http://host:port`, listening on loopback while the block lasts."""
    host, _, port = upstream_url.removeprefix("http://").rpartition(":")
    proxy = FaultProxy(host, int(port))
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.stop()
        await server.wait_closed()
