"""What happened last to each block: stored or evicted, by which life of which worker. Bounded by count.

Fed with the frames of all workers. Asked about a block that no worker holds, it returns why: its last worker
evicted it (a larger cache would still have it), or went away with it. Nothing has to be done block by block
when a worker goes: its life ends, and with it all that was stored in it.

Beyond the bound, what was changed longest ago is forgotten: such a block counts as one that was never seen.
Its misses become compulsory (or rollout, where another revision has it), which is no reason to grow.

In 256 small tables, because Python grows a table at once and nothing else runs meanwhile. Bytes and integers
in a dict are nothing that a garbage collection walks.
"""

from collections.abc import Iterable
from itertools import count, islice
from typing import Final, NamedTuple

from warmfleet_contracts.cache.blocks import HASH_BYTES, BlockHash
from warmfleet_contracts.cache.kv_events import Frame
from warmfleet_router.economics.misses import MissCause

DEFAULT_MAX_BLOCKS: Final = 262_144
"""Four million tokens at 16 per block."""
BLOCK_BYTES: Final = 176
"""Of a block at most: 64 of its hash, which the prefix index shares while it is held, and 54 to 108 of a
table that Python sizes for three times as many."""
PARTS: Final = 256
"""Tables, by a hash's first byte."""
_DROPPED_SHARE: Final = 32
"""A full table drops one of so many of its blocks at a time."""


class _Life(NamedTuple):
    """One process of a worker, until its cache is cleared."""

    epoch: str
    number: int


class GhostList:
    """The last change of each block, the newest `max_blocks` of them.

    ghosts.frame_arrived(uid, frame)  # each frame, before or after the index has it
    ghosts.cause_of_loss(block_hash)  # of a block that no worker holds
    """

    def __init__(self, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        """`max_blocks` is rounded down to a multiple of `PARTS`, and at least that."""
        self._part_blocks = max(max_blocks // PARTS, 1)
        self._parts: tuple[dict[bytes, int], ...] = tuple({} for _ in range(PARTS))
        """Per block the number of the life that changed it last, times 2, plus 1 if it evicted it."""
        self._lives: dict[str, _Life] = {}
        self._living: set[int] = set()
        self._numbers = count()

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def cause_of_loss(self, block_hash: BlockHash) -> MissCause | None:
        """Why no worker holds this block; None if it was never seen, was forgotten, or may be held."""
        code = self._parts[block_hash[0]].get(block_hash)
        if code is None:
            return None
        life, is_evicted = divmod(code, 2)
        if life not in self._living:
            return MissCause.LOST
        return MissCause.CAPACITY if is_evicted else None

    def frame_arrived(self, uid: str, frame: Frame) -> None:
        """A worker's change of its resident set, or a part of a snapshot."""
        life = self._lives.get(uid)
        if life is None or life.epoch != frame.epoch or frame.cleared:
            self.forget(uid)
            life = self._lives[uid] = _Life(frame.epoch, next(self._numbers))
            self._living.add(life.number)
        if frame.stored:
            self._note(frame.stored, life.number * 2)
        if frame.removed:
            self._note(frame.removed, life.number * 2 + 1)

    def ended(self, uid: str, epoch: str) -> None:
        """The worker's process is gone."""
        life = self._lives.get(uid)
        if life is not None and life.epoch == epoch:
            self.forget(uid)

    def forget(self, uid: str) -> None:
        """The worker is gone. Unknown uids are ignored."""
        life = self._lives.pop(uid, None)
        if life is not None:
            self._living.discard(life.number)

    def _note(self, hashes: Iterable[bytes], code: int) -> None:
        if not set(map(len, hashes)) <= {HASH_BYTES}:
            return  # the index refuses such a frame
        parts, most = self._parts, self._part_blocks
        for block_hash in hashes:
            part = parts[block_hash[0]]
            if part.pop(block_hash, None) is None and len(part) >= most:
                for oldest in list(islice(part, most // _DROPPED_SHARE or 1)):
                    del part[oldest]
            part[block_hash] = code
