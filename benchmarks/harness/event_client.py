"""A client that reads event streams with as little work per event as Python allows.

What it costs is time that the router's core does not have to share: one buffer search per read.
"""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from harness.idle_connections import IdleConnections

_DONE: Final = b"data: [DONE]\n\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_RETRY_AFTER: Final = re.compile(rb"\r\nretry-after: (\d+)", re.IGNORECASE)


@dataclass(slots=True)
class Answer:
    """What came of one request; times count from the moment before it was written."""

    status: int = 0
    first_token_seconds: float | None = None
    """To the first event that carries text; the role alone does not count."""
    total_seconds: float = 0.0
    tokens: int = 0
    has_usage: bool = False
    done: bool = False
    retry_after_seconds: int | None = None
    """Seconds to wait that a refusal names."""

    @property
    def complete(self) -> bool:
        """Answered with 200 and a whole stream with its usage."""
        return self.status == 200 and self.has_usage and self.done


class _Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request under way."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.closed = False
        self._started = 0.0
        self._rest = b""
        self._in_head = True
        self._refusal_bytes = 0
        self._answer = Answer()
        self._finished: asyncio.Future[Answer] | None = None
        self._on_first_token: Callable[[], object] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.closed = True
        self._finish()

    def ask(self, request: bytes, on_first_token: Callable[[], object]) -> asyncio.Future[Answer]:
        self._on_first_token = on_first_token
        self._finished = asyncio.get_running_loop().create_future()
        self._answer, self._rest, self._in_head = Answer(), b"", True
        self._started = time.perf_counter()
        self.transport.write(request)
        return self._finished

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        data = self._rest + data
        if self._in_head:
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                self._rest = head
                return
            self._in_head = False
            self._answer.status = int(head.split(b" ", 2)[1])
            if self._answer.status != 200:
                length, wait = _LENGTH.search(head), _RETRY_AFTER.search(head)
                self._refusal_bytes = int(length[1]) if length else 0
                self._answer.retry_after_seconds = int(wait[1]) if wait else None
        if self._answer.status != 200:
            self._rest = data
            if len(data) >= self._refusal_bytes:
                self._finish()
            return
        end = data.rfind(b"\n") + 1
        lines, self._rest = data[:end], data[end:]
        answer = self._answer
        texts = lines.count(b'"content":') + lines.count(b'"text":')
        if texts and answer.first_token_seconds is None:
            answer.first_token_seconds = now - self._started
            self._on_first_token()
        answer.tokens += texts
        answer.has_usage |= b'"usage":{' in lines
        answer.done |= _DONE in lines
        if lines.endswith(b"0\r\n\r\n"):
            self._finish()

    def _finish(self) -> None:
        if self._finished is not None and not self._finished.done():
            self._on_first_token()  # also where there will be none
            self._answer.total_seconds = time.perf_counter() - self._started
            self._finished.set_result(self._answer)


class EventClient:
    """Connections to one server, kept for the next request."""

    def __init__(self, url: str, token: str) -> None:
        self._token = token
        self._connections = IdleConnections(url, _Connection)

    async def ask(
        self,
        path: str,
        body: bytes,
        request_id: str,
        on_first_token: Callable[[], object] = lambda: None,
    ) -> Answer:
        """Send one request and read its stream to the end; calls `on_first_token` at the first token."""
        connections = self._connections
        connection = await connections.take()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {connections.host}:{connections.port}"
            f"\r\nauthorization: Bearer {self._token}\r\ncontent-type: application/json"
            f"\r\nx-request-id: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        answer = await connection.ask(head.encode() + body, on_first_token)
        connections.give_back(connection)
        return answer

    async def warm(self, connections: int) -> None:
        """Open so many connections ahead."""
        await self._connections.warm(connections)

    def close(self) -> None:
        self._connections.close()
