"""Endpoints from the command line: a list that never changes."""

from collections.abc import AsyncGenerator, Iterable

from warmfleet_router.discovery.base import Discovered, DiscoveryState, Endpoint, vetted_endpoints


class StaticDiscovery:
    """A list that never changes.

    Raises:
        DiscoveryError: two endpoints share a uid, or there are more than `MAX_ENDPOINTS`.
    """

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints = vetted_endpoints(endpoints)
        self.state = DiscoveryState()

    async def watch(self) -> AsyncGenerator[Discovered, None]:
        """The list, once."""
        yield Discovered(self._endpoints)
