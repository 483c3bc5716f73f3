"""Forwards ports of the host's loopback to addresses of a cluster: of pods, and of Services.

Requests come out of the cluster's own network, so a Service spreads them over its pods as it does for others.
`kubectl port-forward` does not: it stays with one pod.
"""

import asyncio
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from warmfleet_devcluster.network.forwarder import copy_stream
from warmfleet_devcluster.network.namespace import enter

_START_SECONDS: Final = 10.0


class LoopbackForwarder:
    """A thread inside the cluster's network that forwards connections from ports of the host's loopback."""

    def __init__(self, namespace: Path) -> None:
        """`namespace` opens as the cluster's network namespace."""
        self._namespace = namespace
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._urls: dict[tuple[str, int], str] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="loopback forwarder", daemon=True)
        self._thread.start()

    def to(self, address: str, port: int) -> str:
        """A URL on the host's loopback, without a final slash, behind which this address answers."""
        if (address, port) not in self._urls:
            # A socket belongs to the network of the thread that makes it: this one listens on the host.
            listener = socket.create_server(("127.0.0.1", 0), backlog=256)
            done = asyncio.run_coroutine_threadsafe(self._listen(listener, address, port), self._loop)
            done.result(_START_SECONDS)
            self._urls[address, port] = f"http://127.0.0.1:{listener.getsockname()[1]}"
        return self._urls[address, port]

    def close(self) -> None:
        """Close every port and connection."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        enter(self._namespace)
        self._loop.run_forever()

    async def _listen(self, listener: socket.socket, address: str, port: int) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            with suppress(asyncio.CancelledError, OSError):
                await _pass_on(reader, writer, address, port)
            self._connections.discard(task)
            writer.transport.abort()

        self._servers.append(await asyncio.start_server(accept, sock=listener))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, port: int
) -> None:
    """Both directions, each to its end; a broken one breaks both, as it would directly."""
    inner_reader, inner_writer = await asyncio.open_connection(address, port)
    try:
        both = [copy_stream(reader, inner_writer), copy_stream(inner_reader, writer)]
        await asyncio.gather(*both)
    finally:
        inner_writer.transport.abort()
