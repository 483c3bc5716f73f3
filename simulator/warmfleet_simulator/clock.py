"""Virtual time: an event loop whose clock jumps to the next timer instead of waiting for it.

All production code of router and worker takes its time from the event loop or from a clock that it is given,
so it runs on this loop unchanged. One thread, no sockets: a simulation is deterministic.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from warmfleet_simulator.errors import SimulationError

T = TypeVar("T")
_POLL_JUMPS: Final = 256
"""The operating system is asked for events once in so many jumps: that takes longer than a jump."""


class _JumpingSelector(selectors.DefaultSelector):
    """Advances a clock by the time that the event loop would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now_seconds = 0.0
        self._jumps_left = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._jumps_left -= 1
        if timeout is None or self._jumps_left <= 0:
            self._jumps_left = _POLL_JUMPS
            # The loop's own pipe still works: a signal such as Ctrl-C arrives through it.
            if events := super().select(0):
                return events
        if timeout is None:
            raise SimulationError("the simulation waits for an event that will not come")
        self.now_seconds += max(timeout, 0.0)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time` begins at 0 and passes as fast as its callbacks run."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now_seconds


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a loop of its own.

    Raises:
        SimulationError: it waits for what will never happen.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
