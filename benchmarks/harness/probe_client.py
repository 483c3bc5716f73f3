"""One request at a time, and everything about its answer that a client can see."""

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, Final, cast

from harness.idle_connections import IdleConnections

_LAST_CHUNK: Final = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client sees of one answer; times count from the moment before the request is written."""

    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case, in their order."""
    body: bytes
    """With the marks of its chunks."""
    head_seconds: float
    first_token_seconds: float
    """To the first event with text; to the end for an answer without one."""
    total_seconds: float

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")

    @property
    def usage(self) -> dict[str, Any]:
        """Of a stream that ends with it; empty otherwise."""
        for line in reversed(self.body.split(b"\n")):
            if line.startswith(b"data: {") and b'"usage":{' in line:
                return cast("dict[str, Any]", json.loads(line[6:])["usage"])
        return {}

    @property
    def cached_tokens(self) -> int:
        """From `usage`; -1 without it."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", -1))

    @property
    def error_code(self) -> str:
        """Of an answer that is an error object."""
        start = self.body.find(b"{")
        try:
            return str(json.loads(self.body[start : self.body.rfind(b"}") + 1])["error"]["code"])
        except (ValueError, KeyError, TypeError):
            return ""


class _Connection(asyncio.Protocol):
    """Notes the time of every read and parses nothing while an answer comes in."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.closed = False
        self._data = bytearray()
        self._started = self._first_token = self._head = 0.0
        self._body_at = -1
        self._length: int | None = None
        self._finished: asyncio.Future[Seen] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._finished is not None and not self._finished.done():
            self._finished.set_exception(exc or ConnectionError("the server closed the connection"))

    def ask(self, request: bytes) -> asyncio.Future[Seen]:
        self._finished = asyncio.get_running_loop().create_future()
        self._data = bytearray()
        self._head = self._first_token = 0.0
        self._body_at, self._length = -1, None
        self._started = time.perf_counter()
        self.transport.write(request)
        return self._finished

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter() - self._started
        seen = len(self._data)
        self._data += data
        if self._body_at < 0:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            self._body_at, self._head = end + 4, now
            head = bytes(self._data[:end]).lower()
            length = head.partition(b"content-length: ")[2].partition(b"\r")[0]
            self._length = int(length) if length else None
        if not self._first_token and (
            self._data.find(b'"text":', max(seen - 8, 0)) >= 0
            or self._data.find(b'"content":', max(seen - 11, 0)) >= 0
        ):
            self._first_token = now
        if self._is_whole() and self._finished is not None and not self._finished.done():
            self._finished.set_result(self._seen(now))

    def _is_whole(self) -> bool:
        if self._length is not None:
            return len(self._data) - self._body_at >= self._length
        return self._data.endswith(_LAST_CHUNK)

    def _seen(self, now: float) -> Seen:
        status, *lines = bytes(self._data[: self._body_at - 4]).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return Seen(
            status=int(status.split(" ", 2)[1]),
            headers=tuple((name.strip().lower(), value.strip()) for name, _, value in pairs),
            body=bytes(self._data[self._body_at :]),
            head_seconds=self._head,
            first_token_seconds=self._first_token or now,
            total_seconds=now,
        )


class ProbeClient:
    """Keep-alive connections to one server with one key; as many as requests are under way."""

    def __init__(self, url: str, key: str) -> None:
        self._key = key
        self._connections = IdleConnections(url, _Connection)

    async def ask(self, path: str, body: dict[str, Any], **headers: str) -> Seen:
        """Post `body` and read the answer to its end. Cancelling closes the connection.

        Raises:
            ConnectionError: the server closed it first.
        """
        connections = self._connections
        content = json.dumps(body).encode()
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {connections.host}:{connections.port}\r\n"
            f"authorization: Bearer {self._key}\r\ncontent-type: application/json\r\n{more}"
            f"content-length: {len(content)}\r\n\r\n"
        )
        connection = await connections.take()
        try:
            seen = await connection.ask(head.encode() + content)
        except BaseException:
            connection.transport.close()
            raise
        if seen.header("connection") == "close":
            connection.transport.close()
        else:
            connections.give_back(connection)
        return seen

    def close(self) -> None:
        self._connections.close()
