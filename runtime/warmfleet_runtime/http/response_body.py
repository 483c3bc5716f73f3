"""Writes the parts of a streamed response in the step that has them.

ASGI's `send` is a coroutine through every layer around an application, and only a task can await it. For a
server of thousands of tokens per second that is much of what a token costs. A response that has begun by
`send` can have its parts written here instead, from any callback; it ends by `send`, so that every layer
learns of it.
"""

from collections.abc import Callable
from typing import Final, Protocol

from starlette.types import Scope

EXTENSION: Final = "warmfleet.response_body"
"""Among the `extensions` of a scope."""


class BodyTransport(Protocol):
    """What is needed of a connection's transport."""

    def is_closing(self) -> bool: ...
    def write(self, data: bytes) -> object: ...


class WriteFlow(Protocol):
    """What is needed of uvicorn's flow control."""

    write_paused: bool


class ResponseBody:
    """The body of one response in chunks, as one without a content length is.

    response_body(scope).write(event)  # after `await send({"type": "http.response.start", ...})`
    """

    __slots__ = ("_flow", "_transport", "_when_writable")

    def __init__(self, transport: BodyTransport, flow: WriteFlow) -> None:
        self._transport = transport
        self._flow = flow
        self._when_writable: Callable[[], None] | None = None

    def write(self, part: bytes) -> bool:
        """Write a part that is not empty, at once; nowhere once the client has left.

        False, with nothing written, while the client has too much to read: see `when_writable`.
        """
        if self._flow.write_paused:
            return False
        transport = self._transport
        if not transport.is_closing():
            transport.write(b"%x\r\n%b\r\n" % (len(part), part))
        return True

    def write_chunk(self, chunk: bytes) -> bool:
        """As `write`, for a part that has its framing: its size in hexadecimal digits, two ends of lines."""
        if self._flow.write_paused:
            return False
        transport = self._transport
        if not transport.is_closing():
            transport.write(chunk)
        return True

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` once, as soon as the client takes data again; None forgets one that waits for that.

        What waits is to forget that at its end: a callback is a reference to what answers.
        """
        self._when_writable = callback

    def writable(self) -> None:
        """The client takes data again. Called by the connection."""
        callback, self._when_writable = self._when_writable, None
        if callback is not None:
            callback()


def response_body(scope: Scope) -> ResponseBody:
    """Of a request that `Server` received."""
    body = scope["extensions"][EXTENSION]
    assert isinstance(body, ResponseBody)
    return body
