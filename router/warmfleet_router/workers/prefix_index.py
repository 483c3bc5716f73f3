"""Which worker holds which KV block, as far as this router can be sure of it.

One map from block hash to the workers that hold the block (`block_table`): a prompt is matched for all
workers in one walk, whose cost grows with the workers that hold its beginning. Per worker there is one live
set, the complete resident set at a known (epoch, seq), and during a resync a second one under construction,
each under a slot of its own. Only the slot of a live set that is not suspect is shown, so that a set is
replaced in one assignment, however many blocks it has. What a dropped set leaves in the table is swept in
slices.

Why a suspect set is not used, although it is probably right: the changes that were missed are mostly
evictions, so a stale set predicts too much, sends the prompt where it is not cached and charges that worker
too little for it. Without the index, the picker still sends requests with one prefix to the same worker
(rendezvous hash), and a resync takes milliseconds. A suspect set is kept all the same: the worker can replay
what was missed from its position on.

No clock, no I/O. `event_stream` decides when to call what, `index_sweeper` when to sweep.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_contracts.cache.kv_events import Frame
from warmfleet_contracts.cache.resident import PositionGapError, SetMismatchError, SnapshotAssembly
from warmfleet_contracts.errors import ContractError
from warmfleet_router.workers.block_table import BlockTable
from warmfleet_router.workers.block_use import UseDraws, uses_per_second
from warmfleet_router.workers.held_blocks import HeldBlocks
from warmfleet_router.workers.holder_sets import at_level, holders, holds, level, slots_of
from warmfleet_router.workers.slots import Slots
from warmfleet_router.workers.table_pass import NO_SOLE_BLOCKS, SoleBlocks, TablePass

DEFAULT_MAX_BLOCKS: Final = 16_777_216
"""Blocks over all workers, one that two hold counted twice: at most 130 bytes each, 16 per further holder."""


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


class UniqueValue(NamedTuple):
    """What only one worker holds."""

    blocks: int
    reuses_per_second: float
    """How often prompts asked for these blocks lately, all of them together."""


NO_UNIQUE_VALUE: Final = UniqueValue(0, 0.0)


class _Worker:
    """One worker's live set and the one under construction."""

    __slots__ = ("epoch", "live", "reserved_blocks", "shown", "suspicion", "uid", "under_construction")

    def __init__(self, uid: str, epoch: str) -> None:
        self.uid = uid
        self.epoch = epoch
        self.live: HeldBlocks | None = None
        self.suspicion: Suspicion | None = None
        self.under_construction: SnapshotAssembly[HeldBlocks] | None = None
        self.reserved_blocks = 0
        """Blocks that the snapshot under construction announced."""
        self.shown: int | None = None
        """The slot by which queries find this worker."""


class PrefixIndex:
    """The blocks that each worker holds, in complete sets. Bounded by `max_blocks` over all workers.

    index.connected(uid, epoch)  # then each frame of the stream
    index.apply(uid, frame)
    index.matches(hashes)  # {uid: cached blocks}
    while index.sweep():  # once `on_dropped` was called
        ...
    """

    def __init__(
        self, max_blocks: int = DEFAULT_MAX_BLOCKS, *, on_dropped: Callable[[], None] | None = None
    ) -> None:
        """Make an empty index.

        `on_dropped` is called when a set was dropped and there is something to `sweep`. Without it the index
        sweeps at once, which takes as long as it takes.
        """
        self._max_blocks = max_blocks
        self._on_dropped = on_dropped if on_dropped is not None else self._sweep_all
        self._blocks = 0
        self._workers: dict[str, _Worker] = {}
        self._table = BlockTable()
        self._slots = Slots()
        self._shown: dict[int, str] = {}
        """Worker by slot, of the live sets that are not suspect."""
        self._shown_mask = 0
        self._pass: TablePass | None = None
        self._is_due = self._halving_is_due = False
        self._draws = UseDraws()
        self._sole: Mapping[int, SoleBlocks] = {}
        """What each slot held alone, at the end of the last pass."""

    # Queries.

    def matches(self, hashes: Sequence[BlockHash]) -> dict[str, int]:
        """Blocks of the prompt `hashes` that each precise worker holds without a break from block 0.

        Workers that do not hold block 0 are left out. 0.1 us per block that has the holders of the one
        before, 1 us where the holders change, 0.3 us per holder.
        """
        matched: dict[str, int] = {}
        left, before = self._shown_mask, None
        for position, entry in enumerate(self._table.entries(hashes)):
            if entry == before:
                continue
            before = entry
            still = left & holders(entry)
            if still != left:
                if position:
                    matched.update(dict.fromkeys(self._workers_of(left ^ still), position))
                left = still
                if not left:
                    return matched
        if hashes:
            matched.update(dict.fromkeys(self._workers_of(left), len(hashes)))
        return matched

    def matched_blocks(self, uid: str, hashes: Sequence[BlockHash]) -> int | None:
        """Blocks of the prompt `hashes` that a worker holds without a break from block 0.

        None for a worker that is unknown or not precise: nothing is known about it.
        """
        slot = self._shown_slot(uid)
        if slot is None:
            return None
        for position, entry in enumerate(self._table.entries(hashes)):
            if not holds(entry, slot):
                return position
        return len(hashes)

    def holds(self, uid: str, block_hash: BlockHash) -> bool:
        """Whether a precise worker holds this very block; False where nothing is known."""
        slot = self._shown_slot(uid)
        return slot is not None and holds(self._table.entry(block_hash), slot)

    def is_precise(self, uid: str) -> bool:
        """Whether this worker's set is complete and not suspect."""
        return self._shown_slot(uid) is not None

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
            worker = self._workers[uid] = _Worker(uid, epoch)
        if worker.epoch != epoch:
            self._drop_live(worker)
            worker.epoch = epoch
        self._stop_building(worker)
        if worker.live is not None and worker.suspicion is not Suspicion.MISMATCH:
            worker.suspicion = Suspicion.REPLAYING
            self._show(worker)

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

    # Use.

    def touched(self, hashes: Iterable[BlockHash]) -> None:
        """A request was sent whose prompt has these blocks: those that are held count one use more."""
        draws = self._draws
        self._table.change(hashes, lambda entry: entry and at_level(entry, draws.raised(level(entry))))

    def unique_value(self, uid: str) -> UniqueValue:
        """What would be lost with a worker, as the last pass over the table found it (`count_use`)."""
        worker = self._workers.get(uid)
        if worker is None or worker.live is None:
            return NO_UNIQUE_VALUE
        sole = self._sole.get(worker.live.slot, NO_SOLE_BLOCKS)
        return UniqueValue(sole.blocks, uses_per_second(sole.uses))

    # Sweeping.

    def count_use(self, *, halve: bool) -> None:
        """Let the next pass count what each worker holds alone; `halve` every `HALVING_SECONDS`."""
        self._is_due = True
        self._halving_is_due |= halve

    def sweep(self) -> bool:
        """Visit the next blocks of the table; whether there is more to do, which is for a next call."""
        if self._pass is None:
            if not (self._is_due or self._slots.retired):
                return False
            halving = self._draws if self._halving_is_due else None
            self._pass = TablePass(self._table, gone=self._slots.retired, halving=halving)
            self._is_due = self._halving_is_due = False
        if self._pass.step():
            return True
        self._slots.free(self._pass.gone)
        self._sole = self._pass.sole_blocks
        self._pass = None
        return bool(self._is_due or self._slots.retired)

    # Inside.

    def _advance(self, worker: _Worker, live: HeldBlocks, frame: Frame) -> None:
        if len(frame.stored) > self._max_blocks - self._blocks:
            self._drop_live(worker)
            raise IndexFullError(f"the index is full at {self._max_blocks} blocks")
        if frame.cleared and frame.seq == live.seq + 1 and live:
            self._start_anew(worker, live, frame)
            return
        before = len(live)
        try:
            live.apply(frame)
        except PositionGapError:
            self._suspect(worker, Suspicion.GAP)
            raise
        except SetMismatchError:
            self._suspect(worker, Suspicion.MISMATCH)
            raise
        self._blocks += len(live) - before
        if frame.seq == live.seq:
            # Position and digest agree: nothing is missing, so the suspicion is over.
            worker.suspicion = None
            self._show(worker)

    def _start_anew(self, worker: _Worker, live: HeldBlocks, frame: Frame) -> None:
        """A worker cleared its cache: what it stored since is kept under another slot."""
        try:
            anew = self._empty(worker, live.epoch, live.seq)
        except IndexFullError:
            self._drop_live(worker)
            raise
        try:
            anew.apply(frame)
        except SetMismatchError:
            self._retire(worker, anew)
            self._suspect(worker, Suspicion.MISMATCH)
            raise
        self._swap_in(worker, anew)

    def _build(self, worker: _Worker, frame: Frame) -> None:
        try:
            if worker.under_construction is None:
                # The worker could not replay from the live set's position.
                self._suspect(worker, Suspicion.GAP)

                def empty(epoch: str, seq: int) -> HeldBlocks:
                    self._reserve(worker, frame.digest.count)
                    return self._empty(worker, epoch, seq)

                worker.under_construction = SnapshotAssembly(frame, empty)
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
            self._retire(worker, worker.under_construction.collected)
        worker.under_construction = None
        self._blocks -= worker.reserved_blocks
        worker.reserved_blocks = 0

    def _swap_in(self, worker: _Worker, complete: HeldBlocks) -> None:
        self._drop_live(worker)
        self._blocks += len(complete)
        worker.live = complete
        self._show(worker)

    def _drop_live(self, worker: _Worker) -> None:
        dropped, worker.live, worker.suspicion = worker.live, None, None
        self._show(worker)
        if dropped is not None:
            self._blocks -= len(dropped)
            self._retire(worker, dropped)

    def _suspect(self, worker: _Worker, suspicion: Suspicion) -> None:
        if worker.live is not None and (worker.suspicion is None or suspicion > worker.suspicion):
            worker.suspicion = suspicion
            self._show(worker)

    def _show(self, worker: _Worker) -> None:
        """Let queries find the worker by its live set, if that is trusted, and by nothing else."""
        slot = worker.live.slot if worker.live is not None and worker.suspicion is None else None
        if slot == worker.shown:
            return
        if worker.shown is not None:
            del self._shown[worker.shown]
            self._shown_mask &= ~(1 << worker.shown)
        if slot is not None:
            self._shown[slot] = worker.uid
            self._shown_mask |= 1 << slot
        worker.shown = slot

    def _workers_of(self, mask: int) -> Iterator[str]:
        return map(self._shown.__getitem__, slots_of(mask))

    def _shown_slot(self, uid: str) -> int | None:
        worker = self._workers.get(uid)
        return worker.shown if worker is not None else None

    def _empty(self, worker: _Worker, epoch: str, seq: int) -> HeldBlocks:
        slot = self._slots.take(worker.uid) if self._slots.retired_blocks <= self._max_blocks else None
        if slot is None:
            raise IndexFullError("sets are dropped faster than the index is swept")
        return HeldBlocks(epoch, seq, self._table, slot)

    def _retire(self, worker: _Worker, dropped: HeldBlocks) -> None:
        self._slots.retire(dropped.slot, worker.uid, len(dropped))
        if dropped:
            self._on_dropped()

    def _sweep_all(self) -> None:
        while self.sweep():
            pass
