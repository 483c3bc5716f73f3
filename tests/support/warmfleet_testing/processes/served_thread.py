"""A server in a thread with an event loop of its own, while a block lasts."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

_SECONDS = 10
"""A server starts, and stops, within this time."""

Serve = Callable[[threading.Event, threading.Event], Awaitable[None]]
"""Serves from when it sets the first event until the second one is set."""


@contextmanager
def served_thread(serve: Serve, name: str) -> Iterator[None]:
    """`serve` in a thread of this name: it answers when the block begins, and ends with it."""

    async def run() -> None:
        await serve(ready, stop)

    ready, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(run()), name=name)
    thread.start()
    try:
        assert ready.wait(_SECONDS), f"{name} does not start"
        yield
    finally:
        stop.set()
        thread.join(_SECONDS)
        assert not thread.is_alive(), f"{name} does not stop"
