"""What happened last to each block: stored or evicted, by which life of which worker. Bounded by count.

Fed with the frames of all workers. Asked about a block that no worker holds, it returns why: its last worker
evicted it (a larger cache would still have it), or went away with it. Nothing has to be done block by block
when a worker goes: its life ends, and with it all that was stored in it. A process that leaves the list of
endpoints and comes back begins another life: what it evicted before counts as lost and not as capacity, until
it is stored again. What happened while the router did not look is unknown, and lost is no reason to grow.

Of an evicted block it also knows how many others its worker evicted since: a cache larger by so many blocks
would still have it (reuse distance; Mattson et al. 1970, Evaluation techniques for storage hierarchies).

Beyond the bound, what was changed longest ago is forgotten: such a block counts as one that was never seen.
Its misses become compulsory (or rollout, where another revision has it), which is no reason to grow.

In 256 small tables, because Python grows a table at once and nothing else runs meanwhile. Bytes and integers
in a dict are nothing that a garbage collection walks.
"""

from collections.abc import Iterable
from itertools import count, islice
from typing import Final

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
_AGE_BLOCKS: Final = 8
"""Evictions are counted in steps of so many blocks, whose notes are one and the same integer."""
_AGE_BITS: Final = 40
_AGES: Final = 1 << _AGE_BITS
"""Steps that a life counts; 0 is a block that it stored."""


class _Life:
    """One process of a worker, until its cache is cleared."""

    __slots__ = ("_code", "epoch", "evicted_blocks", "number", "stored_code")

    def __init__(self, epoch: str, number: int) -> None:
        self.epoch = epoch
        self.number = number
        self.evicted_blocks = 0
        """So far."""
        self.stored_code = number << _AGE_BITS
        """What is noted of a block that it stored."""
        self._code = self._code_now()

    def evicts(self, blocks: int) -> int:
        """Count `blocks` more; returns what is noted of each of them."""
        self.evicted_blocks += blocks
        if self.evicted_blocks // _AGE_BLOCKS != self._code % _AGES - 1:
            self._code = self._code_now()
        return self._code

    def _code_now(self) -> int:
        return self.stored_code + self.evicted_blocks // _AGE_BLOCKS + 1


class GhostList:
    """The last change of each block, the newest `max_blocks` of them.

    ghosts.frame_arrived(uid, frame)  # each frame, before or after the index has it
    ghosts.cause_of_loss(block_hash)  # of a block that no worker holds
    ghosts.evicted_since(block_hash)  # if that is capacity
    """

    def __init__(self, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        """`max_blocks` is rounded down to a multiple of `PARTS`, and at least that."""
        self._part_blocks = max(max_blocks // PARTS, 1)
        self._parts: tuple[dict[bytes, int], ...] = tuple({} for _ in range(PARTS))
        """Per block the number of the life that changed it last, and when it evicted it, if it did."""
        self._lives: dict[str, _Life] = {}
        self._living: dict[int, _Life] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def cause_of_loss(self, block_hash: BlockHash) -> MissCause | None:
        """Why no worker holds this block; None if it was never seen, was forgotten, or may be held."""
        code = self._parts[block_hash[0]].get(block_hash)
        if code is None:
            return None
        if code >> _AGE_BITS not in self._living:
            return MissCause.LOST
        return MissCause.CAPACITY if code % _AGES else None

    def evicted_since(self, block_hash: BlockHash) -> int:
        """Blocks that a living worker evicted after this one, to within a few; 0 if it did not evict it."""
        code = self._parts[block_hash[0]].get(block_hash, 0)
        life, age = self._living.get(code >> _AGE_BITS), code % _AGES
        return max(life.evicted_blocks - age * _AGE_BLOCKS, 0) if life is not None and age else 0

    def frame_arrived(self, uid: str, frame: Frame) -> None:
        """A worker's change of its resident set, or a part of a snapshot."""
        life = self._lives.get(uid)
        if life is None or life.epoch != frame.epoch or frame.cleared:
            self.forget(uid)
            life = self._lives[uid] = _Life(frame.epoch, next(self._numbers))
            self._living[life.number] = life
        if frame.stored:
            self._note(frame.stored, life.stored_code)
        if frame.removed:
            self._note(frame.removed, life.evicts(len(frame.removed)))

    def ended(self, uid: str, epoch: str) -> None:
        """The worker's process is gone."""
        life = self._lives.get(uid)
        if life is not None and life.epoch == epoch:
            self.forget(uid)

    def forget(self, uid: str) -> None:
        """The worker is gone. Unknown uids are ignored."""
        life = self._lives.pop(uid, None)
        if life is not None:
            del self._living[life.number]

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
