"""Port forwarding into the cluster's network: listens on the host's loopback, connects in the namespace."""

import asyncio
import errno
import socket
from ipaddress import IPv4Address
from typing import Final

from warmfleet_devcluster.errors import PortBusyError
from warmfleet_devcluster.network.namespace import NetworkNamespace

_CHUNK_BYTES: Final = 65536
_HOST: Final = "127.0.0.1"
_BACKLOG: Final = 256
_MAX_CONNECTIONS: Final = 400
"""Two descriptors each, of the 1024 that a process usually may have."""


class HostForwarder:
    """Forwards TCP connections to one address of the cluster until it is closed."""

    def __init__(self, namespace: NetworkNamespace, target: IPv4Address, port: int) -> None:
        self._namespace = namespace
        self._target = (str(target), port)
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host_port: int) -> int:
        """Listen on 127.0.0.1; returns the port, which the kernel chooses for 0.

        Raises:
            PortBusyError: another process listens there.
        """
        try:
            self._server = await asyncio.start_server(self._accept, _HOST, host_port, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortBusyError(
                f"port {host_port} of {_HOST} is taken",
                advice="choose another with --api-port, or none: then a free one is found",
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # close() cut it; asyncio would log the cancellation of a connection's task as an error
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = self._namespace.make_socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            await asyncio.get_running_loop().sock_connect(inner, self._target)
        except OSError:
            inner.close()
            return  # connection refused: the client's connection is closed, as if made directly
        inner_reader, inner_writer = await asyncio.open_connection(sock=inner)
        try:
            # One direction may end while the other goes on; a broken one breaks both.
            async with asyncio.TaskGroup() as group:
                group.create_task(copy_stream(reader, inner_writer))
                group.create_task(copy_stream(inner_reader, writer))
        except* OSError:
            pass
        finally:
            inner_writer.transport.abort()


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies one direction to its end, and closes the other side's input then."""
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
