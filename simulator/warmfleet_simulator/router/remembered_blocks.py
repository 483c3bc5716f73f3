"""What a router believes a worker holds if it sees no events: what it sent there, the latest first.

So do routers that keep a tree of the prompts they have sent (SGLang's cache-aware router, the approximate
prefix scorer of llm-d). The memory is as large as the worker's cache, and forgets the least recently sent
block. It is wrong where the worker evicts in another order, computes answers, or serves other routers.
"""

from collections import OrderedDict
from collections.abc import Sequence

from warmfleet_contracts.cache.kv_events import Frame
from warmfleet_contracts.cache.resident import ChangeBuffer, ResidentSet


class RememberedBlocks:
    """The blocks of one worker, as frames in place of the worker's own."""

    def __init__(self, epoch: str, capacity_blocks: int) -> None:
        self._capacity_blocks = capacity_blocks
        self._blocks: OrderedDict[bytes, None] = OrderedDict()
        self._changes = ChangeBuffer()
        self._mirror = ResidentSet(epoch)

    def dispatched(self, hashes: Sequence[bytes]) -> None:
        """A prompt with these blocks was sent to the worker."""
        # Tail first: a prefix is useless once its head is gone.
        for block_hash in reversed(hashes):
            if block_hash not in self._blocks:
                self._blocks[block_hash] = None
                self._changes.store(block_hash)
            self._blocks.move_to_end(block_hash)
        while len(self._blocks) > self._capacity_blocks:
            forgotten, _ = self._blocks.popitem(last=False)
            self._changes.remove(forgotten)

    def frames(self, received: Frame) -> Sequence[Frame]:
        """The load of a frame that the worker sent, with what is remembered in place of its blocks."""
        if received.snapshot_left is not None:
            # The worker's own snapshot ends: it had as many parts as its cache needs.
            return () if received.snapshot_left else self._mirror.snapshot(received.load)
        seq = self._mirror.seq
        _, stored, removed = self._changes.take()
        if stored or removed:
            seq += 1
            self._mirror.change(seq, stored=stored, removed=removed)
        return (
            Frame(
                epoch=self._mirror.epoch,
                seq=seq,
                stored=stored,
                removed=removed,
                load=received.load,
                digest=self._mirror.digest,
            ),
        )
