"""The set of blocks that a worker holds, as its server mirrors it and as every router rebuilds it.

One reducer for both sides: the worker's server applies its engine's reports and produces frames and
snapshots; a router applies those frames and arrives at the same set, or detects that it did not. Pure: no
sockets, no clocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Generic, TypeVar, cast

from warmfleet_contracts.cache.blocks import HASH_BYTES, BlockHash
from warmfleet_contracts.cache.kv_events import SNAPSHOT_CHUNK_HASHES, Frame, LoadReport, ResidentDigest
from warmfleet_contracts.errors import ContractError

MAX_RESIDENT_BLOCKS: Final = 4_194_304
"""Most blocks that one worker's set may hold: 64 Mi tokens at 16 per block. A larger set is an error."""

PARTS: Final = 64
"""Hash tables of one set, by a hash's last byte."""


State = TypeVar("State", bound="ResidentState")


class PositionGapError(ContractError):
    """A frame is not the one after the set's position: frames between were lost."""


class SetMismatchError(ContractError):
    """A change or digest contradicts the set: one of the two sides is wrong."""


class ResidentState(ABC):
    """The reducer: position (`epoch`, `seq`) and running digest of the blocks that a worker holds.

    A change names each hash at most once: `stored` hashes join, `removed` hashes leave, `cleared`
    empties the set first. A change that contradicts the set is refused whole. Where the hashes are kept is
    the subclass's: in a set of its own, or with those of other workers.
    """

    __slots__ = ("_count", "_xor", "epoch", "seq")

    def __init__(self, epoch: str, seq: int = 0) -> None:
        self.epoch = epoch
        self.seq = seq
        self._count = 0
        self._xor = 0

    def __len__(self) -> int:
        return self._count

    @property
    def digest(self) -> ResidentDigest:
        """Count and exclusive-or of the set; O(1)."""
        return _digest_of(self._count, self._xor)

    @abstractmethod
    def holds_any(self, hashes: Collection[BlockHash]) -> bool:
        """Whether at least one of `hashes` is held."""

    @abstractmethod
    def holds_all(self, hashes: Collection[BlockHash]) -> bool:
        """Whether each of `hashes` is held."""

    @abstractmethod
    def _clear(self) -> None: ...

    @abstractmethod
    def _add(self, hashes: Collection[BlockHash]) -> None:
        """Keep `hashes`, none of which is held."""

    @abstractmethod
    def _remove(self, hashes: Collection[BlockHash]) -> None:
        """Drop `hashes`, all of which are held."""

    def change(
        self,
        seq: int,
        *,
        cleared: bool = False,
        stored: Sequence[bytes] = (),
        removed: Sequence[bytes] = (),
        digest: ResidentDigest | None = None,
    ) -> None:
        """Apply one change and move to `seq`; `digest`, if given, is what the set must have afterwards.

        Raises:
            SetMismatchError: a stored hash is already held, a removed one is not, one is named twice or
                is no hash, the digest differs, or the set would outgrow `MAX_RESIDENT_BLOCKS`. The set
                is as before.
        """
        joining = _as_hashes(stored)
        leaving = _as_hashes(removed)
        if cleared and leaving:
            raise SetMismatchError("a change clears the set and removes blocks from it")
        if not cleared and (self.holds_any(joining) or not self.holds_all(leaving)):
            raise SetMismatchError("a change stores a block that is held or removes one that is not")
        count = (0 if cleared else self._count) + len(joining) - len(leaving)
        if count > MAX_RESIDENT_BLOCKS:
            raise SetMismatchError(f"a worker claims more than {MAX_RESIDENT_BLOCKS} resident blocks")
        xor = _xor_of(leaving, _xor_of(joining, 0 if cleared else self._xor))
        if digest is not None and digest != _digest_of(count, xor):
            raise SetMismatchError(f"the digest after position {seq} differs")
        if cleared:
            self._clear()
        self._add(joining)
        self._remove(leaving)
        self._count = count
        self._xor = xor
        self.seq = seq

    def apply(self, frame: Frame) -> bool:
        """Apply a live frame; True if the set moved on.

        A frame at or before the set's position changes nothing: it is a repetition, or load alone. One
        at the position must still carry the set's digest.

        Raises:
            PositionGapError: the frame is of another epoch or skips a position; the set is as before.
            SetMismatchError: the frame contradicts the set, which is as before.
        """
        if frame.epoch != self.epoch:
            raise PositionGapError(f"frame of epoch {frame.epoch!r} for a set of epoch {self.epoch!r}")
        if frame.seq < self.seq:
            return False
        if frame.seq > self.seq + 1:
            raise PositionGapError(f"frame {frame.seq} after position {self.seq}")
        if frame.seq == self.seq:
            if frame.digest != self.digest:
                raise SetMismatchError(f"the digest at position {frame.seq} differs")
            return False
        if not (frame.stored or frame.removed or frame.cleared) and frame.digest != self.digest:
            raise PositionGapError(f"a load frame is at position {frame.seq}, after {self.seq}")
        self.change(
            frame.seq,
            cleared=frame.cleared,
            stored=frame.stored,
            removed=frame.removed,
            digest=frame.digest,
        )
        return True


class ResidentSet(ResidentState):
    """The block hashes a worker holds, in a set of its own.

    Kept as `PARTS` small hash tables, because Python grows a table at once: 30 ms for a million hashes, in
    which nothing else runs.
    """

    __slots__ = ("_parts",)

    def __init__(self, epoch: str, seq: int = 0, hashes: Iterable[BlockHash] = ()) -> None:
        super().__init__(epoch, seq)
        self._parts: list[set[BlockHash]] = [set() for _ in range(PARTS)]
        self.change(seq, stored=list(hashes))

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._parts[block_hash[-1] % PARTS]

    def __iter__(self) -> Iterator[BlockHash]:
        return chain.from_iterable(self._parts)

    def hashes(self) -> frozenset[BlockHash]:
        """A copy of the set."""
        return frozenset(self)

    def holds_any(self, hashes: Collection[BlockHash]) -> bool:
        return any(map(self.__contains__, hashes))

    def holds_all(self, hashes: Collection[BlockHash]) -> bool:
        return all(map(self.__contains__, hashes))

    def _clear(self) -> None:
        self._parts = [set() for _ in range(PARTS)]

    def _add(self, hashes: Collection[BlockHash]) -> None:
        for block_hash in hashes:
            self._parts[block_hash[-1] % PARTS].add(block_hash)

    def _remove(self, hashes: Collection[BlockHash]) -> None:
        for block_hash in hashes:
            self._parts[block_hash[-1] % PARTS].remove(block_hash)

    def snapshot(self, load: LoadReport | None = None) -> list[Frame]:
        """The whole set at this position as frames of at most `SNAPSHOT_CHUNK_HASHES`, at least one.

        The frames hold their own copy: later changes of the set do not reach them. The last one
        carries `load`.
        """
        hashes: list[bytes] = list(self)
        chunks = max(1, -(-len(hashes) // SNAPSHOT_CHUNK_HASHES))
        return [
            Frame(
                epoch=self.epoch,
                seq=self.seq,
                stored=hashes[number * SNAPSHOT_CHUNK_HASHES : (number + 1) * SNAPSHOT_CHUNK_HASHES],
                snapshot_left=chunks - 1 - number,
                load=load if number == chunks - 1 else None,
                digest=self.digest,
            )
            for number in range(chunks)
        ]


class SnapshotAssembly(Generic[State]):
    """Collects the chunks of one snapshot; incomplete until `add` returns the complete state."""

    def __init__(self, first: Frame, empty: Callable[[str, int], State]) -> None:
        """`empty(epoch, seq)` makes the state into which the chunks are collected."""
        if first.snapshot_left is None or first.snapshot_left < 0:
            raise ContractError("a snapshot starts with a frame that is none of its chunks")
        if first.digest.count > MAX_RESIDENT_BLOCKS:
            raise SetMismatchError(f"a worker claims more than {MAX_RESIDENT_BLOCKS} resident blocks")
        self._digest = first.digest
        self._chunks_left = first.snapshot_left + 1
        self._set = empty(first.epoch, first.seq)

    @property
    def collected(self) -> State:
        """What the chunks so far held."""
        return self._set

    def add(self, frame: Frame) -> State | None:
        """Take the next chunk; the complete set after the last one.

        Raises:
            ContractError: the chunk is not the next of this snapshot.
            SetMismatchError: the chunks do not add up to the announced digest, or outgrow it on the way.
        """
        chunk_of_this = (
            frame.epoch == self._set.epoch
            and frame.seq == self._set.seq
            and frame.digest == self._digest
            and frame.snapshot_left == self._chunks_left - 1
            and not (frame.removed or frame.cleared)
        )
        if not chunk_of_this:
            raise ContractError("a snapshot chunk does not follow the one before it")
        if len(self._set) + len(frame.stored) > self._digest.count:
            raise SetMismatchError("a snapshot holds more blocks than it announced")
        self._set.change(frame.seq, stored=frame.stored)
        self._chunks_left -= 1
        if self._chunks_left:
            return None
        if self._set.digest != self._digest:
            raise SetMismatchError("a snapshot's digest differs from the announced one")
        return self._set


class ChangeBuffer:
    """Merges consecutive changes into one: the content of a frame that covers several engine steps.

    A block that was stored and removed again is left out, as is one removed and stored again. Calls come
    in the order of the changes.
    """

    def __init__(self) -> None:
        self.cleared = False
        self._stored: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}

    def __bool__(self) -> bool:
        return bool(self.cleared or self._stored or self._removed)

    def clear(self) -> None:
        self.cleared = True
        self._stored.clear()
        self._removed.clear()

    def store(self, block_hash: bytes) -> None:
        if block_hash in self._removed:
            del self._removed[block_hash]
        else:
            self._stored[block_hash] = None

    def remove(self, block_hash: bytes) -> None:
        if block_hash in self._stored:
            del self._stored[block_hash]
        else:
            self._removed[block_hash] = None

    def take(self) -> tuple[bool, list[bytes], list[bytes]]:
        """`(cleared, stored, removed)` so far, in order of occurrence; the buffer is empty afterwards."""
        taken = (self.cleared, list(self._stored), list(self._removed))
        self.cleared = False
        self._stored.clear()
        self._removed.clear()
        return taken


def _as_hashes(values: Iterable[bytes]) -> Collection[BlockHash]:
    """In the order of `values`, which is the same in every process; that of a set of bytes is not."""
    listed = list(values)
    hashes = dict.fromkeys(cast("list[BlockHash]", listed))
    if len(hashes) != len(listed):
        raise SetMismatchError("a change names a block twice")
    if not set(map(len, hashes)) <= {HASH_BYTES}:
        raise SetMismatchError(f"a block hash has {HASH_BYTES} bytes")
    return hashes


def _xor_of(hashes: Collection[BlockHash], start: int) -> int:
    # All of them side by side in one long number, folded in half until one is left: no loop over hashes.
    folded, count = int.from_bytes(b"".join(hashes), "little"), len(hashes)
    while count > 1:
        count = (count + 1) // 2
        bits = count * HASH_BYTES * 8
        folded = (folded >> bits) ^ (folded & ((1 << bits) - 1))
    return start ^ folded


def _digest_of(count: int, xor: int) -> ResidentDigest:
    return ResidentDigest(count=count, xor=xor.to_bytes(HASH_BYTES, "little"))
