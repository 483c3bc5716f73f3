"""uvicorn's HTTP/1.1 protocol with a bounded request head and OpenAI's error bodies.

The parser keeps request line and headers until they are complete, however long that takes and however many
bytes they are; an application gets them only then. So both bounds stand here, around the parser.
"""

import asyncio
import socket
import struct
import uuid
from typing import Final, cast

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from warmfleet_contracts.cache.worker_api import REQUEST_ID_HEADER
from warmfleet_contracts.openai.request_fields import RequestError
from warmfleet_runtime.http.connections import Connections
from warmfleet_runtime.http.response_body import EXTENSION, ResponseBody

MAX_HEAD_BYTES: Final = 64 * 1024
"""Request line and headers together; trailers, too."""
HEAD_SECONDS: Final = 30.0
"""From the first byte of a request, or from an empty connection, to the end of a head."""
CLOSING_SECONDS: Final = 30.0
"""How long a client may take for the rest of an answer after which its connection closes."""

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of no time at all: closing forgets what is unsent, instead of keeping it until it is taken."""
_STATUS_LINES: Final = {
    400: b"HTTP/1.1 400 Bad Request\r\n",
    408: b"HTTP/1.1 408 Request Timeout\r\n",
    503: b"HTTP/1.1 503 Service Unavailable\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
}

_log = structlog.get_logger("warmfleet.http")


def _closing(send: Send) -> Send:
    """`send` for an answer that is the last on its connection."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return send_and_close


class BoundedHeadProtocol(HttpToolsProtocol):
    """One connection. A head that is too large, too slow or no HTTP at all ends it, with an answer."""

    _in_head = False
    """Between a request's first byte and the end of its headers."""
    _parsed = 0
    """Heads, pieces of bodies and messages that the parser has handed on."""
    _kept_bytes = 0
    """What came since then: part of a head or of trailers, and kept by the parser."""
    _head_deadline: asyncio.TimerHandle | None = None
    _closing_deadline: asyncio.TimerHandle | None = None
    _is_lost = False
    _response_body: ResponseBody | None = None
    """Of the latest request; those of one connection are answered one after the other."""

    open_connections: Connections
    """Of the server; `bounded_by` sets it."""

    @classmethod
    def bounded_by(cls, connections: Connections) -> "type[BoundedHeadProtocol]":
        """The protocol for a server with these connections."""
        return type(cls.__name__, (cls,), {"open_connections": connections})

    @property
    def app(self) -> ASGIApp:
        """The application around which the bounds of an answer stand.

        Bound anew each time: kept on the connection, it would be a reference cycle, and everything that hangs
        on a connection would wait for the garbage collector.
        """
        return self._answer

    @app.setter
    def app(self, app: ASGIApp) -> None:
        self._whole_app = app

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))  # uvloop's descends from none
        if self.open_connections.opened(self):
            self._wait_for_head()
        else:
            limit = self.open_connections.limit
            self._refuse(
                RequestError(
                    f"{limit} connections are open and busy, which is the limit",
                    status=503,
                    code="overloaded",
                )
            )

    def crowded_out(self) -> None:
        """End this idle connection: a new one needs its place."""
        self._stop_waiting()
        self._reset()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application; when the connection is closed after it, that does not last for ever."""
        self._response_body = ResponseBody(self.transport, self.flow)
        scope["extensions"] = {EXTENSION: self._response_body}
        try:
            await self._whole_app(scope, receive, _closing(send) if self.open_connections.closing else send)
        finally:
            self.loop.call_soon(self._bound_closing)  # uvicorn closes in the step that is under way

    def _bound_closing(self) -> None:
        if self.transport.is_closing() and not self._is_lost and self._closing_deadline is None:
            # Closing waits until all is sent, and the client may never read.
            self._closing_deadline = self.loop.call_later(CLOSING_SECONDS, self._reset)

    def _reset(self) -> None:
        """End the connection and forget what is unsent, here and in the kernel. Harmless once it is gone."""
        if self._is_lost:
            return
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def on_response_complete(self) -> None:
        self.open_connections.waits(self)
        super().on_response_complete()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._response_body is not None:
            self._response_body.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._response_body = None
        self.open_connections.closed(self)
        self._stop_waiting()
        super().connection_lost(exc)
        # A timer that ran on would keep everything of the connection in memory; uvicorn's does after a reset.
        self._unset_keepalive_if_required()
        if self._closing_deadline is not None:
            self._closing_deadline.cancel()

    def data_received(self, data: bytes) -> None:
        parsed = self._parsed
        super().data_received(data)
        if self.transport.is_closing():
            return
        # Of a chunk in which something was complete, the rest is uncounted; the server's reads bound it.
        self._kept_bytes = self._kept_bytes + len(data) if parsed == self._parsed else 0
        if self._kept_bytes > MAX_HEAD_BYTES:
            self._refuse(head_too_large_error(self._kept_bytes))
        elif self._in_head and self._head_deadline is None:
            self._wait_for_head()

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what comes after the body is never a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._parsed += 1
        self._stop_waiting()
        self.open_connections.asks(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._parsed += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._parsed += 1
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        del msg
        self._refuse(RequestError("the request is not valid HTTP/1.1", code="invalid_http"))

    def _wait_for_head(self) -> None:
        self._head_deadline = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_waiting(self) -> None:
        if self._head_deadline is not None:
            self._head_deadline.cancel()
            self._head_deadline = None

    def _head_is_late(self) -> None:
        self._head_deadline = None
        if self.transport.is_closing():
            return
        if self._is_answering:  # half of the next request must not end the answer to this one
            self._wait_for_head()
        elif self._in_head:
            self._refuse(
                RequestError(f"the headers did not arrive within {HEAD_SECONDS:.0f} seconds", status=408)
            )
        else:
            self.transport.close()

    @property
    def _is_answering(self) -> bool:
        # None until the first request, although uvicorn declares otherwise.
        return bool(self.cycle) and not self.cycle.response_complete

    @property
    def _awaits_body(self) -> bool:
        """Whether the only request that has no answer yet is still arriving."""
        return (
            self._is_answering and self.cycle.more_body and not (self.cycle.response_started or self.pipeline)
        )

    def _refuse(self, error: RequestError) -> None:
        """Answer without an application and close; in the middle of another answer only close."""
        if self._awaits_body:
            self.cycle.disconnected = True  # this is its answer; the application learns that the client left
            self.cycle.message_event.set()
        request_id = uuid.uuid4().hex
        _log.info("connection refused", request_id=request_id, status=error.status, reason=error.message)
        if not self._is_answering or self._awaits_body:
            body = error.body()
            headers = (
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
                f"{REQUEST_ID_HEADER}: {request_id}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(_STATUS_LINES[error.status] + headers.encode() + body)
        self.transport.close()


def head_too_large_error(head_bytes: int) -> RequestError:
    """431 for a head of `head_bytes`, or of more than that."""
    return RequestError(
        f"request line and headers have {head_bytes} bytes, the limit is {MAX_HEAD_BYTES}",
        status=431,
        code="headers_too_large",
    )
