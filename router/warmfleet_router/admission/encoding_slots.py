"""How many large requests are decoded and encoded at a time, and whose is next.

Both take time in proportion to the body, and memory of several times its size. A tenant may have as many
slots as are still free, and tenants that wait are served in rotation: between two of a tenant's prompts
there is at most one of each other tenant. Without keys all clients are one tenant, which may have all slots.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from warmfleet_router.tenants import Tenant

Share = str | None
"""Whose slots they are: a tenant's, by name, or None for the only tenant there is."""


class EncodingSlots:
    """Slots for large requests, by tenant. Belongs to one event loop.

    async with slots.slot(tenant):
        ...  # decode the body, encode the prompt
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._held: Counter[Share] = Counter()
        self._waiting: dict[Share, deque[asyncio.Future[None]]] = {}
        """By tenant, the next one first."""

    @asynccontextmanager
    async def slot(self, tenant: Tenant) -> AsyncGenerator[None, None]:
        """Wait for a slot and hold it while the block lasts."""
        share = None if tenant.is_alone else tenant.name
        await self._take(share)
        try:
            yield
        finally:
            self._give_back(share)

    async def _take(self, share: Share) -> None:
        if share not in self._waiting and self._may_take(share):
            self._count(share)
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(share, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # it came at the same moment
                self._give_back(share)
            raise

    def _give_back(self, share: Share) -> None:
        self._free += 1
        self._held[share] -= 1
        if not self._held[share]:
            del self._held[share]
        for waiting in list(self._waiting):
            while self._may_take(waiting) and (granted := self._next(waiting)) is not None:
                self._count(waiting)
                granted.set_result(None)

    def _next(self, share: Share) -> asyncio.Future[None] | None:
        """Take out the tenant's next request that was not cancelled; its others go behind other tenants'."""
        queue = self._waiting.pop(share, None)
        while queue:
            granted = queue.popleft()
            if not granted.done():
                if queue:
                    self._waiting[share] = queue
                return granted
        return None

    def _may_take(self, share: Share) -> bool:
        return self._free > (0 if share is None else self._held[share])

    def _count(self, share: Share) -> None:
        self._free -= 1
        self._held[share] += 1
