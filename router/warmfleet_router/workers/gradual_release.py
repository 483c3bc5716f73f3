"""Frees large sets of blocks in parts, between which the event loop runs."""

import asyncio
from collections import deque

from warmfleet_contracts.cache.resident import ResidentSet


class GradualRelease:
    """Takes over sets that are not used any more and frees one part per iteration of the event loop.

    release = GradualRelease()
    release(dropped)  # returns at once
    """

    def __init__(self) -> None:
        self._sets: deque[ResidentSet] = deque()

    def __call__(self, dropped: ResidentSet) -> None:
        """Free `dropped`; the caller keeps no reference. Needs a running event loop."""
        self._sets.append(dropped)
        if len(self._sets) == 1:
            asyncio.get_running_loop().call_soon(self._free_part)

    @property
    def pending(self) -> int:
        """Sets that are not freed wholly."""
        return len(self._sets)

    def _free_part(self) -> None:
        if not self._sets[0].free_part():
            self._sets.popleft()
        if self._sets:
            asyncio.get_running_loop().call_soon(self._free_part)
