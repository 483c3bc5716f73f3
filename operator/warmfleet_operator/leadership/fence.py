"""The time until which this process may write: checked before every write, extended by every renewal."""

import time
from collections.abc import Callable
from typing import Final

from warmfleet_operator.errors import NotLeadingError


def _since_boot() -> float:
    # Unlike CLOCK_MONOTONIC it advances while the machine sleeps: after a resume, a laptop or a paused
    # virtual machine must not act as the leader.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fence:
    """A deadline on a monotonic clock. After a process was stopped and resumed, the deadline has passed."""

    def __init__(self, clock: Callable[[], float] = _since_boot) -> None:
        self.clock: Final = clock
        self._deadline = float("-inf")

    @property
    def leading(self) -> bool:
        return self.clock() < self._deadline

    def extend(self, deadline: float) -> None:
        """Allow writes until `deadline`, in seconds on `clock`."""
        self._deadline = deadline

    def drop(self) -> None:
        """Allow no write from now on."""
        self._deadline = float("-inf")

    def require(self) -> None:
        """Raise NotLeadingError if writes are not allowed now."""
        if not self.leading:
            raise NotLeadingError("the lease was not renewed in time; another replica may be leading")
