"""Clients over bare sockets that leave when they like, by the ordinary end of a connection or by a reset."""

import asyncio
import json
import socket
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER for zero seconds: closing sends RST and forgets what was not sent."""


class Goodbye(StrEnum):
    """How a connection ends."""

    FIN = "fin"
    RST = "rst"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, as far as the client stayed."""

    status: int
    content: bytes

    @property
    def complete(self) -> bool:
        """Whether the last byte that the answer's own framing promises has come."""
        head, _, body = self.content.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head:
            return body.endswith(b"0\r\n\r\n")
        length = next((line for line in head.split(b"\r\n") if line.startswith(b"content-length:")), b":-1")
        return len(body) == int(length.split(b":")[1])


class LeavingClient:
    """One connection to `url` with at most one request."""

    def __init__(self, url: str, *, token: str = "") -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = (parts.hostname, parts.port)
        self._token = token
        self._socket = socket.socket()

    async def connect(self) -> None:
        self._socket.setblocking(False)
        await asyncio.get_running_loop().sock_connect(self._socket, self._address)

    async def ask(self, path: str, body: dict[str, Any], *, sent_ratio: float = 1.0) -> None:
        """Send a request, or only the first `sent_ratio` of its bytes."""
        content = json.dumps(body).encode()
        authorization = f"authorization: Bearer {self._token}\r\n" if self._token else ""
        head = f"POST {path} HTTP/1.1\r\nhost: fleet\r\n{authorization}content-type: application/json\r\n"
        request = f"{head}content-length: {len(content)}\r\n\r\n".encode() + content
        count = len(request) if sent_ratio >= 1 else int(len(request) * sent_ratio)
        await self.send(request[:count])

    async def send(self, content: bytes) -> None:
        """Any bytes, such as those of a request by hand."""
        await asyncio.get_running_loop().sock_sendall(self._socket, content)

    async def read(self, *, at_most: int | None = None) -> Answer:
        """The answer to its end, or until `at_most` bytes of it have come."""
        loop = asyncio.get_running_loop()
        content = b""
        status = 0
        while at_most is None or len(content) < at_most:
            data = await loop.sock_recv(self._socket, 65_536)
            content += data
            if not status and b"\r\n" in content:
                status = int(content.split(b" ", 2)[1])
            if not data or Answer(status, content).complete:
                break
        return Answer(status, content)

    def leave(self, goodbye: Goodbye = Goodbye.FIN) -> None:
        """End the connection. Idempotent."""
        if self._socket.fileno() < 0:
            return
        if goodbye is Goodbye.RST:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._socket.close()
