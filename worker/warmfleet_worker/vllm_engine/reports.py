"""Makes reports of what happened since the one before, and of metrics."""

from collections.abc import Callable
from dataclasses import replace

import structlog

from warmfleet_worker.engine.messages import MAX_METRICS_BYTES, EngineMetrics, SequenceUpdate, StepReport
from warmfleet_worker.engine.updates import merged
from warmfleet_worker.vllm_engine.load import LoadTracker, StepStatistics
from warmfleet_worker.vllm_engine.resident import ResidentBlocks
from warmfleet_worker.vllm_engine.sequences import LiveSequences

log = structlog.get_logger("warmfleet.worker.vllm")


def metrics_report(read: Callable[[], bytes]) -> EngineMetrics:
    """VLLM's own metrics, by `read`; none if they are too long or cannot be read: none ends an engine."""
    try:
        text = read()
    except Exception as error:  # noqa: BLE001 - of any collector
        log.warning("vLLM's own metrics cannot be read", reason=str(error))
        text = b""
    if len(text) > MAX_METRICS_BYTES:
        log.warning("vLLM's own metrics are left out", bytes=len(text), limit_bytes=MAX_METRICS_BYTES)
        text = b""
    return EngineMetrics(text=text)


class Reports:
    """Collects updates and steps; `take` makes one report of them."""

    def __init__(self, max_batched_tokens: int) -> None:
        self._max_batched_tokens = max_batched_tokens
        self._updates: list[SequenceUpdate] = []
        self._step = StepStatistics()
        self._seq = 0
        self._evicted_blocks = 0
        self._failed_sequences = 0
        self._has_progress = False

    def add_update(self, update: SequenceUpdate) -> None:
        self._has_progress = True
        self._updates.append(update)

    def add_refusal(self, sequence_id: int, reason: str) -> None:
        """A sequence never started."""
        self._updates.append(SequenceUpdate(sequence_id=sequence_id, finish_reason="error", error=reason))

    def add_failure(self) -> None:
        """A sequence ended because it could not be computed."""
        self._failed_sequences += 1

    def add_step(self, statistics: StepStatistics) -> None:
        """A step has ended, or vLLM is idle."""
        self._has_progress = True
        preempted = self._step.preempted_sequences + statistics.preempted_sequences
        latest = statistics if statistics.computed_tokens else self._step
        self._step = replace(latest, preempted_sequences=preempted)

    def take(self, resident: ResidentBlocks, load: LoadTracker, sequences: LiveSequences) -> StepReport:
        """Everything since the last call, the changes of `resident` among it, and the load now."""
        self._seq += bool(resident.changes)
        cleared, stored, removed = resident.changes.take()
        report = StepReport(
            updates=merged(self._updates),
            seq=self._seq,
            cleared=cleared,
            stored=stored,
            removed=removed,
            load=load.report(sequences, resident.copies),
            scheduled_tokens=self._step.computed_tokens,
            step_seconds=self._step.step_seconds,
            max_batched_tokens=self._max_batched_tokens,
            preempted_sequences=self._step.preempted_sequences,
            evicted_blocks=resident.evicted_blocks - self._evicted_blocks,
            failed_sequences=self._failed_sequences,
            no_progress=len(sequences) > 0 and not self._has_progress,
        )
        self._evicted_blocks = resident.evicted_blocks
        self._updates = []
        self._step = StepStatistics()
        self._failed_sequences = 0
        self._has_progress = False
        return report
