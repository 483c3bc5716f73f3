"""A deadline for each of many reads, with one timer for all of them.

async with deadline_of_reads(longest_seconds) as deadline:
    while True:
        deadline.read_begins()
        data = await anext(chunks)
        deadline.read_ends()
        ...  # what is done with the data may take any time
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Final

_TIMER_SECONDS: Final = 0.001
"""uvloop's timers know milliseconds, and may come so much too early."""
_PASSES: Final = 3
"""Of the event loop, between a deadline that is due and its verdict. asyncio has looked at its sockets by the
first of them; uvloop looks after one, and the reader's task goes on one later."""


class ReadDeadline:
    """Expires `timeout` when a read takes longer than `longest_seconds()`.

    Each read has a deadline, and hardly one of them is ever due: a timer for each was a third of all timers
    of a router whose workers send thousands of messages a second. So one timer looks when the first of them
    is due, and again when that of the read which goes on by then will be.
    """

    def __init__(self, timeout: asyncio.Timeout, longest_seconds: Callable[[], float]) -> None:
        self._timeout, self._longest_seconds = timeout, longest_seconds
        self._loop = asyncio.get_running_loop()
        self._due_at = math.inf
        """Of the read that goes on."""
        self._timer: asyncio.Handle | None = None
        self._looks_at = math.inf
        """When the timer does; never later than the read is due, but while that is being judged."""

    def read_begins(self) -> None:
        """From now on the time counts.

        Raises:
            TimeoutError: An earlier read took too long, and what it waited for went on nevertheless.
        """
        if self._timeout.expired():
            raise TimeoutError
        self._due_at = self._loop.time() + self._longest_seconds()
        if self._due_at < self._looks_at:
            self._look_at(self._due_at)

    def read_ends(self) -> None:
        """What was read may take any time."""
        self._due_at = math.inf
        if self._timeout.when() is not None and not self._timeout.expired():
            self._timeout.reschedule(None)  # the verdict of a moment ago

    def close(self) -> None:
        """Judge no read any more."""
        self._due_at = math.inf
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._looks_at = self._loop.call_at(at, self._look), at

    def _look(self) -> None:
        self._timer, self._looks_at = None, math.inf
        if self._due_at <= self._loop.time() + _TIMER_SECONDS:
            # This process may have been held up itself, and the bytes be there: their reader comes first.
            self._loop.call_soon(self._judge, self._due_at, _PASSES)
        elif self._due_at < math.inf:
            self._look_at(self._due_at)

    def _judge(self, due_at: float, passes: int) -> None:
        if self._due_at != due_at:
            return
        if passes > 1:
            self._loop.call_soon(self._judge, due_at, passes - 1)
        else:
            self._timeout.reschedule(due_at)


@contextlib.asynccontextmanager
async def deadline_of_reads(longest_seconds: Callable[[], float]) -> AsyncIterator[ReadDeadline]:
    """Raises TimeoutError out of the block once a read took longer than `longest_seconds()`."""
    async with asyncio.timeout(None) as timeout:
        deadline = ReadDeadline(timeout, longest_seconds)
        try:
            yield deadline
        finally:
            deadline.close()
