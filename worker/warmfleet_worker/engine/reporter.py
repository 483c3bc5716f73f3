"""What an engine reports of its cache and its load."""

from typing import Final

import msgspec

from warmfleet_contracts.cache.kv_events import LoadReport, StepTimeFit
from warmfleet_worker.engine.admitted_dispatches import AdmittedDispatches
from warmfleet_worker.engine.hit_verifier import VerifiedBlocks
from warmfleet_worker.engine.messages import SequenceUpdate, StepReport
from warmfleet_worker.engine.scheduler import Scheduler
from warmfleet_worker.engine.step_recovery import NOTHING_COMPUTED, StepOutcome
from warmfleet_worker.kv_cache.block_pool import BlockPool

NOTHING_VERIFIED: Final = VerifiedBlocks()


class Reporter:
    """Reports what changed since the last step, and the load as it is; one per engine.

    reporter.dispatches.count("router-0", 7)
    report = reporter.step(updates, fit, scheduled_tokens=32, outcome=outcome)
    """

    def __init__(
        self, pool: BlockPool, scheduler: Scheduler, *, seats: int, fixed_batched_tokens: int
    ) -> None:
        """`fixed_batched_tokens`: most tokens of a step, as set; 0: it depends on how long they take."""
        self.dispatches = AdmittedDispatches()
        self._pool = pool
        self._scheduler = scheduler
        self._seats = seats
        self._fixed_batched_tokens = fixed_batched_tokens or msgspec.UNSET
        self._seq = 0
        self._reported_evictions = 0
        self._draining = False

    def drain(self) -> None:
        """Report `draining` from now on."""
        self._draining = True

    def step(
        self,
        updates: list[SequenceUpdate],
        step_time: StepTimeFit,
        *,
        scheduled_tokens: int = 0,
        preempted_sequences: int = 0,
        outcome: StepOutcome = NOTHING_COMPUTED,
        verified: VerifiedBlocks = NOTHING_VERIFIED,
    ) -> StepReport:
        """The report of one step, with all changes of the cache since the last one."""
        changes = self._pool.take_changes()
        self._seq += bool(changes)
        evicted_blocks = self._pool.evicted_blocks - self._reported_evictions
        self._reported_evictions = self._pool.evicted_blocks
        return StepReport(
            updates=updates,
            seq=self._seq,
            cleared=changes.cleared,
            stored=list(changes.stored),
            removed=list(changes.removed),
            load=self._load(step_time),
            scheduled_tokens=scheduled_tokens,
            step_seconds=outcome.seconds,
            preempted_sequences=preempted_sequences,
            evicted_blocks=evicted_blocks,
            verified_blocks=verified.compared,
            mismatched_blocks=verified.mismatched,
            paused_sequences=self._scheduler.paused_sequences,
            failed_executions=outcome.failures,
            failed_sequences=outcome.failed_chunks,
        )

    def load_only(self, step_time: StepTimeFit) -> StepReport:
        """The load; changes of the cache stay for the next step."""
        return StepReport(
            seq=self._seq, load=self._load(step_time), paused_sequences=self._scheduler.paused_sequences
        )

    def _load(self, step_time: StepTimeFit) -> LoadReport:
        # Idle sequences keep no client waiting, and give their blocks to the first one that comes.
        waiting = [sequence for sequence in self._scheduler.waiting if not sequence.is_idle]
        queued_tokens = sum(sequence.uncached_tokens for sequence in waiting)
        dispatches = [sequence.dispatch for sequence in waiting]
        running_sequences = context_tokens = idle_blocks = 0
        for sequence in self._scheduler.running:
            if sequence.is_idle:
                idle_blocks += sequence.taken_blocks
                continue
            running_sequences += 1
            dispatches.append(sequence.dispatch)
            context_tokens += sequence.computed_tokens
            if not sequence.is_decoding:
                queued_tokens += sequence.uncomputed_tokens
        return LoadReport(
            running_sequences=running_sequences,
            waiting_sequences=len(waiting),
            max_running_sequences=self._seats,
            queued_uncached_tokens=queued_tokens,
            context_tokens=context_tokens,
            total_blocks=self._pool.total_blocks,
            pinned_blocks=max(self._pool.pinned_blocks - idle_blocks, 0),
            cached_blocks=self._pool.evictable_blocks,
            step_time=step_time,
            admitted_dispatches=self.dispatches.by_router(),
            draining=self._draining,
            fixed_batched_tokens=self._fixed_batched_tokens,
            open_dispatches=self.dispatches.open_by_router(dispatches),
        )
