"""Makes reports of what happened since the one before, and of metrics."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from warmfleet_worker.engine.messages import (
    MAX_MESSAGE_BYTES,
    MAX_METRICS_BYTES,
    EngineMetrics,
    SequenceUpdate,
    StepReport,
)
from warmfleet_worker.engine.updates import merged
from warmfleet_worker.vllm_engine.load import LoadTracker, StepStatistics
from warmfleet_worker.vllm_engine.outputs import Output
from warmfleet_worker.vllm_engine.resident import ResidentBlocks
from warmfleet_worker.vllm_engine.scores import token_logprobs
from warmfleet_worker.vllm_engine.sequences import LiveSequence, LiveSequences

_FINISH_REASONS: Final = frozenset({"stop", "length", "abort"})

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


def sequence_update(sequence: LiveSequence, output: Output, prompt: Sequence[int]) -> SequenceUpdate:
    """What `output` brings to a sequence of `prompt`, before its tokens are counted in `sequence`."""
    is_first = sequence.is_prefilling
    token_ids = list(output.token_ids) if sequence.wants_tokens else []
    logprobs = prompt_logprobs = None
    if sequence.logprobs is not None:
        logprobs = token_logprobs(zip(token_ids, output.logprobs, strict=False), sequence.logprobs)
    if sequence.prompt_logprobs is not None and output.prompt_logprobs:
        prompt_logprobs = token_logprobs(
            zip(prompt[1:], output.prompt_logprobs, strict=True), sequence.prompt_logprobs
        )
    reason, error = output.finish_reason, ""
    if reason and reason not in _FINISH_REASONS:
        reason, error = "error", f"vLLM ended the sequence: {output.finish_reason}"
    return SequenceUpdate(
        sequence_id=sequence.sequence_id,
        cached_tokens=output.cached_tokens if is_first else None,
        last_block=sequence.last_block if is_first else b"",
        token_ids=token_ids,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        finish_reason=reason,
        error=error,
    )


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
        self._scores_bytes = 0

    def add_update(self, update: SequenceUpdate) -> None:
        self._has_progress = True
        self._failed_sequences += update.finish_reason == "error"
        self._updates.append(update)
        for scores in (update.logprobs, update.prompt_logprobs):
            if scores is not None:
                self._scores_bytes += len(scores.values) * (1 + 2 * scores.top)

    @property
    def is_large(self) -> bool:
        """Whether the next report is to be made at once: with what may come it could exceed a message."""
        return self._scores_bytes > MAX_MESSAGE_BYTES // 4

    def add_end(self, sequence_id: int, finish_reason: str, error: str) -> None:
        """A sequence ended without an output of vLLM, or was never given to it."""
        self._updates.append(
            SequenceUpdate(sequence_id=sequence_id, finish_reason=finish_reason, error=error)
        )

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
        self._scores_bytes = 0
        self._step = StepStatistics()
        self._failed_sequences = 0
        self._has_progress = False
        return report
