"""Load reports from vLLM's statistics of its steps. Pure."""

from dataclasses import dataclass

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_worker.engine.admitted_dispatches import AdmittedDispatches
from warmfleet_worker.engine.step_time import StepTimeEstimator
from warmfleet_worker.kv_cache.block_table import blocks_for
from warmfleet_worker.vllm_engine.sequences import LiveSequences


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """What vLLM reports of one step; also of none, when it becomes idle."""

    running_sequences: int = 0
    used_ratio: float = 0.0
    """Of the pool's blocks: held by live sequences."""
    prefill_tokens: int = 0
    decode_sequences: int = 0
    step_seconds: float = 0.0
    preempted_sequences: int = 0

    @property
    def computed_tokens(self) -> int:
        return self.prefill_tokens + self.decode_sequences


class LoadTracker:
    """Makes load reports; one per engine.

    tracker.on_step(statistics, sequences)  # before the tokens of that step are counted in `sequences`
    report = tracker.report(sequences, cached_copies=resident.copies)
    """

    def __init__(
        self, *, seats: int, total_blocks: int, block_size_tokens: int, fixed_batched_tokens: int
    ) -> None:
        self.dispatches = AdmittedDispatches()
        self._seats = seats
        self._total_blocks = total_blocks
        self._block_size_tokens = block_size_tokens
        self._fixed_batched_tokens = fixed_batched_tokens
        self._step_time = StepTimeEstimator()
        self._latest = StepStatistics()
        self._draining = False

    @property
    def is_idle(self) -> bool:
        """Whether vLLM computes nothing, by its own report: what was aborted may be in the step in flight."""
        return not self._latest.running_sequences

    def drain(self) -> None:
        """Report `draining` from now on."""
        self._draining = True

    def on_step(self, statistics: StepStatistics, sequences: LiveSequences) -> None:
        """Take in what vLLM reports of a step, before that step's tokens are counted in `sequences`."""
        self._latest = statistics
        if statistics.computed_tokens:
            shape = sequences.apply_step(statistics.prefill_tokens, statistics.decode_sequences)
            self._step_time.observe(shape, statistics.step_seconds)

    def report(self, sequences: LiveSequences, cached_copies: int) -> LoadReport:
        """The load now. `cached_copies`: blocks in the prefix cache, held by live sequences or not."""
        requested = sequences.requested
        # vLLM starts those first that clients wait for.
        running = min(self._latest.running_sequences, len(requested))
        used = round(self._latest.used_ratio * self._total_blocks) if len(sequences) else 0
        open_blocks = sum(
            sequence.context_tokens % self._block_size_tokens > 0
            for sequence in sequences
            if sequence.has_started
        )
        held_copies = max(used - open_blocks, 0)
        idle_blocks = sum(
            blocks_for(sequence.context_tokens, self._block_size_tokens)
            for sequence in sequences
            if sequence.is_idle
        )
        return LoadReport(
            running_sequences=running,
            waiting_sequences=len(requested) - running,
            max_running_sequences=self._seats,
            queued_uncached_tokens=sum(
                sequence.uncomputed_tokens for sequence in requested if sequence.is_prefilling
            ),
            context_tokens=sum(sequence.context_tokens for sequence in requested),
            total_blocks=self._total_blocks,
            pinned_blocks=max(used - idle_blocks, 0),
            cached_blocks=min(max(cached_copies - held_copies, 0), self._total_blocks - used),
            step_time=self._step_time.fit(),
            admitted_dispatches=self.dispatches.by_router(),
            draining=self._draining,
            fixed_batched_tokens=self._fixed_batched_tokens,
            open_dispatches=self.dispatches.open_by_router(sequence.dispatch for sequence in requested),
        )
