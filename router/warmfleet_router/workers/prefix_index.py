"""Which worker holds which KV block, as far as this router can be sure of it.

Per worker there is one live set, the complete resident set at a known (epoch, seq), and during a resync a
second one under construction. Only a live set that is not suspect is used.

Why a suspect set is not used, although it is probably right: the changes that were missed are mostly
evictions, so a stale set predicts too much, sends the prompt where it is not cached and charges that worker
too little for it. Without the index, the picker still sends requests with one prefix to the same worker
(rendezvous hash), and a resync takes milliseconds. A suspect set is kept all the same: the worker can replay
what was missed from its position on.

No clock, no I/O. `event_stream` decides when to call what.

A garbage collection walks every container that is not frozen, 65 ms per million blocks, and hashes are in no
cycle: each set is frozen while it is empty, before blocks join it.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Final

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.kv_events import Frame
from warmfleet_contracts.cache.resident import (
    PositionGapError,
    ResidentSet,
    SetMismatchError,
    SnapshotAssembly,
)
from warmfleet_contracts.errors import ContractError
from warmfleet_runtime.memory import exclude_from_collection

DEFAULT_MAX_BLOCKS: Final = 16_777_216
"""Blocks over all workers; about 110 bytes each."""


class IndexFullError(ContractError):
    """A worker's blocks do not fit the index's bound; the worker is routed by load only."""


class Suspicion(enum.IntEnum):
    """Why a live set is not used for decisions, the gravest last."""

    SILENT = 1
    """No frame for too long. The set itself is intact: the next frame in sequence clears this."""
    REPLAYING = 2
    """The stream was reopened; the next frame shows whether the worker resumes where the set stands."""
    GAP = 3
    """A frame was missed; a replay from the set's position repairs it."""
    MISMATCH = 4
    """Set and worker contradict each other; only a snapshot repairs it."""


class _Worker:
    """One worker's live set and the one under construction."""

    __slots__ = ("epoch", "live", "reserved_blocks", "suspicion", "under_construction")

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.live: ResidentSet | None = None
        self.suspicion: Suspicion | None = None
        self.under_construction: SnapshotAssembly | None = None
        self.reserved_blocks = 0
        """Blocks that the snapshot under construction announced."""

    @property
    def trusted(self) -> ResidentSet | None:
        """The live set, unless it is suspect."""
        return self.live if self.suspicion is None else None


class PrefixIndex:
    """The blocks that each worker holds, in complete sets. Bounded by `max_blocks` over all workers.

    index.connected(uid, epoch)  # then each frame of the stream
    index.apply(uid, frame)
    cached_blocks = index.matched_blocks(uid, hashes)  # None: nothing is known of this worker

    One set per worker and nothing across workers: a set is replaced in one assignment, however many blocks
    it has, and live streams do not wait for it. A prompt is walked once per worker that holds its beginning,
    6 us for 125 blocks; pricing the worker costs more.
    """

    def __init__(
        self,
        max_blocks: int = DEFAULT_MAX_BLOCKS,
        *,
        release: Callable[[ResidentSet], None] = lambda _: None,
    ) -> None:
        """Make an empty index. `release` gets each set that is dropped: freeing a large one takes long."""
        self._max_blocks = max_blocks
        self._release = release
        self._blocks = 0
        self._workers: dict[str, _Worker] = {}

    # Queries.

    def matched_blocks(self, uid: str, hashes: Sequence[BlockHash]) -> int | None:
        """Blocks of the prompt `hashes` that a worker holds without a break from block 0.

        None for a worker that is unknown or not precise: nothing is known about it.
        """
        worker = self._workers.get(uid)
        trusted = worker.trusted if worker is not None else None
        return trusted.matched_blocks(hashes) if trusted is not None else None

    def holds(self, uid: str, block_hash: BlockHash) -> bool:
        """Whether a precise worker holds this very block; False where nothing is known."""
        worker = self._workers.get(uid)
        return worker is not None and worker.trusted is not None and block_hash in worker.trusted

    def is_precise(self, uid: str) -> bool:
        """Whether this worker's set is complete and not suspect."""
        worker = self._workers.get(uid)
        return worker is not None and worker.trusted is not None

    def position(self, uid: str) -> tuple[str, int] | None:
        """(epoch, seq) of the worker's live set, suspect or not: where a replay would start.

        None if only a snapshot can help.
        """
        worker = self._workers.get(uid)
        if worker is None or worker.live is None or worker.suspicion is Suspicion.MISMATCH:
            return None
        return worker.live.epoch, worker.live.seq

    def suspicion(self, uid: str) -> Suspicion | None:
        """Why the worker's live set is not used; None if it is, or if there is none."""
        worker = self._workers.get(uid)
        return worker.suspicion if worker is not None else None

    def resident_blocks(self, uid: str) -> int:
        """Blocks of the worker's live set; 0 without one."""
        worker = self._workers.get(uid)
        return len(worker.live) if worker is not None and worker.live is not None else 0

    @property
    def blocks(self) -> int:
        """Blocks of all sets; a block held by two workers counts twice."""
        return self._blocks

    # Events of the stream.

    def connected(self, uid: str, epoch: str) -> None:
        """A verified hello of `uid` in `epoch`. Another epoch than the live one drops that at once."""
        worker = self._workers.get(uid)
        if worker is None:
            worker = self._workers[uid] = _Worker(epoch)
        if worker.epoch != epoch:
            self._drop_live(worker)
            worker.epoch = epoch
        self._stop_building(worker)
        if worker.live is not None and worker.suspicion is not Suspicion.MISMATCH:
            worker.suspicion = Suspicion.REPLAYING

    def apply(self, uid: str, frame: Frame) -> None:
        """Take one frame of a connected worker: live, load alone, or a part of a snapshot.

        Raises:
            PositionGapError: frames were missed; the set is suspect, `position` is where a replay
                would start.
            SetMismatchError: set and worker contradict each other; a snapshot is needed.
            IndexFullError: the worker's set does not fit; nothing of it is kept.
            ContractError: the frame has no place here (another epoch, a torn snapshot); reconnect.
        """
        worker = self._workers[uid]
        if frame.epoch != worker.epoch:
            raise ContractError(f"frame of epoch {frame.epoch!r} on a stream of epoch {worker.epoch!r}")
        if frame.snapshot_left is not None:
            self._build(worker, frame)
        elif worker.under_construction is not None:
            self._stop_building(worker)
            raise ContractError("a live frame arrived in the middle of a snapshot")
        elif worker.live is None or worker.suspicion is Suspicion.MISMATCH:
            raise ContractError("a live frame arrived where only a snapshot helps")
        else:
            self._advance(worker, worker.live, frame)

    def suspect(self, uid: str, suspicion: Suspicion) -> None:
        """Stop using the worker's live set. A graver reason is not replaced by a lesser one."""
        worker = self._workers.get(uid)
        if worker is not None:
            self._suspect(worker, suspicion)

    def forget(self, uid: str) -> None:
        """Drop everything about a worker. Unknown uids are ignored."""
        worker = self._workers.pop(uid, None)
        if worker is not None:
            self._stop_building(worker)
            self._drop_live(worker)

    # Inside.

    def _advance(self, worker: _Worker, live: ResidentSet, frame: Frame) -> None:
        if len(frame.stored) > self._max_blocks - self._blocks:
            self._drop_live(worker)
            raise IndexFullError(f"the index is full at {self._max_blocks} blocks")
        before = len(live)
        starts_anew = frame.cleared and frame.seq == live.seq + 1
        base = ResidentSet(live.epoch, live.seq) if starts_anew else live
        try:
            base.apply(frame)
        except PositionGapError:
            self._suspect(worker, Suspicion.GAP)
            raise
        except SetMismatchError:
            self._suspect(worker, Suspicion.MISMATCH)
            raise
        if starts_anew:
            exclude_from_collection()
            worker.live = base
            self._release(live)
        self._blocks += len(base) - before
        if frame.seq == base.seq:
            # Position and digest agree: nothing is missing, so the suspicion is over.
            worker.suspicion = None

    def _build(self, worker: _Worker, frame: Frame) -> None:
        try:
            if worker.under_construction is None:
                # The worker could not replay from the live set's position.
                self._suspect(worker, Suspicion.GAP)
                worker.under_construction = SnapshotAssembly(frame)
                exclude_from_collection()
                self._reserve(worker, frame.digest.count)
            complete = worker.under_construction.add(frame)
        except ContractError:
            self._stop_building(worker)
            raise
        if complete is not None:
            worker.under_construction = None
            self._stop_building(worker)
            self._swap_in(worker, complete)

    def _reserve(self, worker: _Worker, announced_blocks: int) -> None:
        if self._blocks + announced_blocks > self._max_blocks:
            self._drop_live(worker)
        if self._blocks + announced_blocks > self._max_blocks:
            raise IndexFullError(f"{announced_blocks} more blocks do not fit the index's {self._max_blocks}")
        worker.reserved_blocks = announced_blocks
        self._blocks += announced_blocks

    def _stop_building(self, worker: _Worker) -> None:
        if worker.under_construction is not None:
            self._release(worker.under_construction.collected)
        worker.under_construction = None
        self._blocks -= worker.reserved_blocks
        worker.reserved_blocks = 0

    def _swap_in(self, worker: _Worker, complete: ResidentSet) -> None:
        self._drop_live(worker)
        self._blocks += len(complete)
        worker.live = complete

    def _drop_live(self, worker: _Worker) -> None:
        if worker.live is not None:
            self._blocks -= len(worker.live)
            self._release(worker.live)
        worker.live = None
        worker.suspicion = None

    @staticmethod
    def _suspect(worker: _Worker, suspicion: Suspicion) -> None:
        if worker.live is not None and (worker.suspicion is None or suspicion > worker.suspicion):
            worker.suspicion = suspicion
