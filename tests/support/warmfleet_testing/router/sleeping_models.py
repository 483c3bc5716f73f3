"""Models that sleep in front of a router: what it discovers while a test wakes them."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from warmfleet_router.discovery.base import Discovered, DiscoveryState, Endpoint
from warmfleet_testing.router.stub_worker import StubWorker


class SleepingModels:
    """A `Discovery` of models that may sleep, by `hold_seconds`, at first without any replica."""

    def __init__(self, hold_seconds: Mapping[str, float], *always_awake: str) -> None:
        self.state = DiscoveryState()
        self.owners: Mapping[str, str] = {}
        self._hold_seconds = dict(hold_seconds)
        self._names = frozenset({*hold_seconds, *always_awake})
        self._lists: asyncio.Queue[Discovered] = asyncio.Queue()
        self.discover()

    def discover(self, *stubs: StubWorker) -> None:
        """From now on these are the replicas."""
        endpoints = tuple(
            Endpoint(
                uid=stub.uid,
                name=stub.uid,
                url=stub.url,
                served_names=(stub.served_name, *stub.aliases),
                token=stub.token.encode(),
            )
            for stub in stubs
        )
        self._lists.put_nowait(Discovered(endpoints, self._names, self._hold_seconds, self.owners))

    def delete(self) -> None:
        """No model is deployed any more."""
        self._lists.put_nowait(Discovered((), frozenset()))

    async def watch(self) -> AsyncGenerator[Discovered, None]:
        """See `Discovery`."""
        while True:
            yield await self._lists.get()
