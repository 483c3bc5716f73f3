"""Until when this process may write. Asked before every write, extended by every renewal of the lease."""

import time
from collections.abc import Callable
from typing import Final

from warmfleet_operator.errors import NotLeadingError


def _since_boot() -> float:
    # Counts on while the machine sleeps, which CLOCK_MONOTONIC does not: a laptop or a paused virtual machine
    # must not wake up believing that it leads.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Fence:
    """A deadline on a monotonic clock. A process that was stopped and resumed finds it passed."""

    def __init__(self, clock: Callable[[], float] = _since_boot) -> None:
        self.clock: Final = clock
        self._deadline = float("-inf")

    @property
    def leading(self) -> bool:
        return self.clock() < self._deadline

    def extend(self, deadline: float) -> None:
        """Writing is allowed until `deadline`, on this fence's clock."""
        self._deadline = deadline

    def drop(self) -> None:
        """No write from now on."""
        self._deadline = float("-inf")

    def require(self) -> None:
        """Raises: NotLeadingError."""
        if not self.leading:
            raise NotLeadingError("the lease was not renewed in time; another replica may be leading")
