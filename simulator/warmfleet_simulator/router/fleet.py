"""The router's view of replicas in memory: a list of endpoints that changes, and their event streams."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from collections.abc import Set as AbstractSet
from typing import Final

from warmfleet_contracts.cache.contract_versions import CONTRACT_VERSION
from warmfleet_contracts.cache.kv_events import Frame, Hello, MessageReader, encode_message
from warmfleet_router.discovery.base import Discovered, DiscoveryState, Endpoint
from warmfleet_router.errors import StreamUnavailableError
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_simulator.replica.replica import Replica
from warmfleet_simulator.router.network import Network
from warmfleet_simulator.router.remembered_blocks import RememberedBlocks

MODEL: Final = "simulated"
"""Name of the one model."""
TOKENIZER: Final = "trace"
"""Digest of the tokenizer that encoded the trace."""


class SimulatedFleet:
    """The replicas of a simulation. `discovery` and `source` for the production `Fleet`."""

    def __init__(self, network: Network, *, sees_events: bool = True) -> None:
        """Without `sees_events` the router gets the workers' loads, and what it remembers to have sent."""
        self.replicas: dict[str, Replica] = {}
        self.state = DiscoveryState()
        self._network = network
        self._sees_events = sees_events
        self._remembered: dict[str, RememberedBlocks] = {}
        self._changed = asyncio.Event()

    def add(self, replica: Replica) -> None:
        """The router discovers a replica."""
        self.replicas[replica.uid] = replica
        if not self._sees_events:
            self._remembered[replica.uid] = RememberedBlocks(replica.epoch, replica.settings.total_blocks)
        self._changed.set()

    def remove(self, uid: str) -> None:
        """A replica that answers nothing any more leaves the list."""
        del self.replicas[uid]
        self._remembered.pop(uid, None)
        self._changed.set()

    def remembered(self, uid: str) -> RememberedBlocks | None:
        """What the router remembers of a replica; None if it sees events, or if there is none."""
        return self._remembered.get(uid)

    async def watch(self) -> AsyncGenerator[Discovered, None]:
        """The list of endpoints now and after each change (`Discovery`)."""
        while True:
            self._changed.clear()
            yield Discovered(
                tuple(
                    Endpoint(uid=uid, name=uid, url="http://replica.invalid", served_names=(MODEL,))
                    for uid in self.replicas
                ),
                frozenset({MODEL}),
            )
            await self._changed.wait()

    async def open(
        self, endpoint: Endpoint, epoch: str, after: int, nonce: bytes, versions: AbstractSet[int]
    ) -> AsyncGenerator[bytes, None]:
        """The event stream of a replica, each piece after the network's delay (`EventSource`)."""
        del nonce, versions  # it has no token to prove, and speaks this release's version
        replica = self.replicas.get(endpoint.uid)
        if replica is None:
            raise StreamUnavailableError("the replica has gone", is_down=True)
        remembered = self._remembered.get(endpoint.uid)
        yield encode_message(_hello(replica))
        reader = MessageReader({CONTRACT_VERSION})
        async for data in replica.events(epoch, after):
            await self._network.deliver()
            if remembered is None:
                yield data
                continue
            for received in reader.feed(data):
                if isinstance(received, Frame):
                    yield b"".join(map(encode_message, remembered.frames(received)))


def follow_fleet(
    fleet: SimulatedFleet,
    index: PrefixIndex,
    *,
    on_frame: Callable[[str, Frame], None],
    on_change: Callable[[], None],
    on_gone: Callable[[str], None],
) -> Fleet:
    """The production fleet over a simulated one, not started."""
    return Fleet(
        fleet,
        fleet,
        index=index,
        clock=asyncio.get_running_loop().time,
        on_frame=on_frame,
        on_change=on_change,
        on_gone=on_gone,
    )


def _hello(replica: Replica) -> Hello:
    return Hello(
        uid=replica.uid,
        identity=replica.identity,
        block_size_tokens=replica.settings.block_size_tokens,
        window_tokens=0,
        epoch=replica.epoch,
        served_names=[MODEL],
        tokenizer_digest=TOKENIZER,
        max_model_length_tokens=replica.settings.capacity_tokens,
        proof=b"",
    )
