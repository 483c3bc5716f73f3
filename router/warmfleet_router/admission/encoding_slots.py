"""How many large requests are decoded and encoded at a time, and whose is next.

Both take time in proportion to the body, and memory of several times its size. A tenant may have as many
slots as are still free, and tenants that wait are served in rotation: between two of a tenant's prompts
there is at most one of each other tenant. Without keys all clients are one tenant, which may have all slots.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from warmfleet_router.tenants import ANONYMOUS


class EncodingSlots:
    """Slots for large requests, by tenant. Belongs to one event loop.

    async with slots.slot("tenant"):
        ...  # decode the body, encode the prompt
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By tenant, the next one first."""

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncGenerator[None, None]:
        """Wait for a slot and hold it while the block lasts."""
        await self._take(tenant)
        try:
            yield
        finally:
            self._give_back(tenant)

    async def _take(self, tenant: str) -> None:
        if tenant not in self._waiting and self._may_take(tenant):
            self._count(tenant)
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # it came at the same moment
                self._give_back(tenant)
            raise

    def _give_back(self, tenant: str) -> None:
        self._free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        for name in list(self._waiting):
            while self._may_take(name) and (granted := self._next(name)) is not None:
                self._count(name)
                granted.set_result(None)

    def _next(self, tenant: str) -> asyncio.Future[None] | None:
        """Take out the tenant's next request that was not cancelled; its others go behind other tenants'."""
        queue = self._waiting.pop(tenant, None)
        while queue:
            granted = queue.popleft()
            if not granted.done():
                if queue:
                    self._waiting[tenant] = queue
                return granted
        return None

    def _may_take(self, tenant: str) -> bool:
        return self._free > (0 if tenant == ANONYMOUS.name else self._held[tenant])

    def _count(self, tenant: str) -> None:
        self._free -= 1
        self._held[tenant] += 1
