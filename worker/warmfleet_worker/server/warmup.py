"""When a worker whose engine is ready takes requests: once its routers have prewarmed it, or soon.

Routers follow its event stream, and so know of it before it is ready. It waits for the first of them for
`ROUTER_SECONDS`, for what they have it compute for `--prewarm-seconds` in all, and depends on nobody.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from warmfleet_worker.server.events import EventHub

ROUTER_SECONDS: Final = 2.0
"""From the engine's readiness to the first router's request."""

log = structlog.get_logger("warmfleet.worker.warmup")


class Warmup:
    """Open or not; opens once and for all.

    warmup.begin()  # the engine is ready
    with warmup.computing():  # what a router asks for
        ...
    """

    def __init__(self, events: EventHub, seconds: float) -> None:
        """`seconds`: from the engine's readiness on, at most; 0 makes it open from the start."""
        self.is_open = seconds <= 0
        self._events = events
        self._seconds = seconds
        self._computing = 0
        self._timers: list[asyncio.TimerHandle] = []
        events.warm_up(warming=not self.is_open)

    def begin(self) -> None:
        """The engine is ready: from now on time counts."""
        if not self.is_open:
            loop = asyncio.get_running_loop()
            first = min(ROUTER_SECONDS, self._seconds)
            self._timers = [
                loop.call_later(first, self._waited),
                loop.call_later(self._seconds, self._open, "its time is over"),
            ]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A router has prefixes computed; opens after the last one's."""
        self._computing += 1
        try:
            yield
        finally:
            self._computing -= 1
            if not self._computing:
                self._open("prewarmed")

    def _waited(self) -> None:
        if not self._computing:
            self._open("no router came")

    def _open(self, reason: str) -> None:
        if self.is_open:
            return
        self.is_open = True
        for timer in self._timers:
            timer.cancel()
        log.info("ready for requests", reason=reason)
        self._events.warm_up(warming=False)
