"""A picker that sends each prompt where another run of the same requests sent it.

What caches then hold does not depend on decisions, so that a simulation can be compared with a live run of a
policy whose decisions a millisecond may change.
"""

from collections.abc import Mapping, Sequence

from warmfleet_router.routing.block_hash_memory import BlockHashMemory
from warmfleet_router.routing.fleet_snapshot import FleetSnapshot
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.picker import Picker
from warmfleet_router.routing.prompt_hashes import RequestPrompts
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.prefix_index import PrefixIndex


def prompt_key(token_ids: Sequence[int]) -> bytes:
    """The key of a prompt in `placements`."""
    prompts = RequestPrompts(
        encoded={"": [token_ids]}, salt=b"", hash_memory=BlockHashMemory(), body_bytes=0, head=b""
    )
    return prompts.whole_key


class PlacedPicker(Picker):
    """Ranks no worker but the one that a prompt is to get; a request waits while that one has no capacity."""

    def __init__(
        self,
        index: PrefixIndex,
        leases: Leases,
        policy: str,
        breakers: Breakers,
        placements: Mapping[bytes, str],
    ) -> None:
        """`placements` has the uid for each prompt, by its `prompt_key`."""
        super().__init__(index, leases, policy, breakers)
        self._placements = placements

    def considered(
        self, fleet: FleetSnapshot, prompts: RequestPrompts, left_out: Mapping[str, str]
    ) -> Mapping[str, WorkerStatus]:
        placed = self._placements[prompts.whole_key]
        workers = super().considered(fleet, prompts, left_out)
        return {uid: worker for uid, worker in workers.items() if uid == placed}
