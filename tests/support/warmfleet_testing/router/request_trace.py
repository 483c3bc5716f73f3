"""Which room of the router calls which, recorded while one request passes.

Frames are attributed to the request by a context variable: what the request's task awaits, and the tasks that
it starts, inherit it; event streams and timers of the router do not. A call through a library (starlette's
routing, a thread pool) counts as a call of the nearest frame of the router above it.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

PACKAGE: Final = "warmfleet_router"

_traced: ContextVar[bool] = ContextVar("traced", default=False)


@dataclass(frozen=True, slots=True, order=True)
class Call:
    """One function of a room, called from another."""

    caller: str
    callee: str
    module: str
    function: str
    """Qualified by its class."""


@dataclass
class RequestTrace:
    """All calls between rooms that one request made."""

    calls: set[Call] = field(default_factory=set)

    @property
    def edges(self) -> set[tuple[str, str]]:
        """Pairs of rooms, caller first."""
        return {(call.caller, call.callee) for call in self.calls}

    def entered(self, room: str) -> set[str]:
        """Functions of `room` that were called from outside."""
        return {call.function for call in self.calls if call.callee == room}

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """For `sys.setprofile`."""
        del argument
        # A generator expression runs where it is consumed: that is no call.
        if event != "call" or not _traced.get() or frame.f_code.co_name == "<genexpr>":
            return
        room = room_of(frame.f_code)
        if room is None:
            return
        caller = _caller(frame)
        if caller is not None and caller != room:
            module = frame.f_globals["__name__"].rpartition(".")[2]
            self.calls.add(Call(caller, room, module, frame.f_code.co_qualname))


def room_of(code: CodeType) -> str | None:
    """The room that a function is defined in; a module at the package's top is its own room."""
    parts = code.co_filename.replace("\\", "/").split("/")
    if PACKAGE not in parts:
        return None
    return parts[parts.index(PACKAGE) + 1].removesuffix(".py")


def _caller(frame: FrameType) -> str | None:
    above = frame.f_back
    while above is not None:
        room = room_of(above.f_code)
        if room is not None:
            return room
        above = above.f_back
    return None


class TracedApp:
    """The router's application; requests that carry `x-trace: 1` are the traced ones."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and (b"x-trace", b"1") in scope["headers"]:
            _traced.set(True)
        await self._app(scope, receive, send)


@contextmanager
def recording() -> Iterator[RequestTrace]:
    """Record in this thread and in those started meanwhile."""
    trace = RequestTrace()
    threading.setprofile(trace.profile)
    sys.setprofile(trace.profile)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
