"""Keep-alive connections to one server, kept for the next request."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from urllib.parse import urlsplit


class Connection(Protocol):
    """What a client keeps: an `asyncio.Protocol` that knows when it is over."""

    transport: asyncio.Transport
    closed: bool


Kept = TypeVar("Kept", bound=Connection)


class IdleConnections(Generic[Kept]):
    """As many as requests were under way at once; `make` makes the protocol of a new one."""

    def __init__(self, url: str, make: Callable[[], Kept]) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self._make = make
        self._idle: list[Kept] = []

    async def take(self) -> Kept:
        """One that is open still, or else a new one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and not connection.transport.is_closing():
                return connection
        return await self._open()

    def give_back(self, connection: Kept) -> None:
        self._idle.append(connection)

    async def warm(self, connections: int) -> None:
        """Open so many ahead."""
        self._idle += [await self._open() for _ in range(connections)]

    def close(self) -> None:
        for connection in self._idle:
            connection.transport.close()

    async def _open(self) -> Kept:
        connection = self._make()
        await asyncio.get_running_loop().create_connection(lambda: connection, self.host, self.port)
        return connection
