"""Step recovery: a chunk that cannot be computed does not affect the other sequences of its batch.

When a step raises, as it is begun or finished, it is computed again in halves, and those in halves, until
each failing chunk is alone (delta debugging in its simplest form; Zeller & Hildebrandt 2002). Computing a
chunk again is harmless: its KV writes are idempotent (same tokens, same positions, blocks that no other
sequence reads or writes before they are committed), no chunk reads what another one of its step writes, and
sampling noise is a function of (seed, output index, token id) with no state. So the other sequences get the
token ids of an undisturbed step.

A step that fails as a whole and not in halves, as one that was short of memory, fails no sequence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from warmfleet_worker.engine.batch import Chunk, ChunkResult, StepBatch, StepInFlight, StepResult

Begin = Callable[[StepBatch], StepInFlight]
"""A runner's first half."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Results of a step, in the order of its chunks."""

    chunks: tuple[ChunkResult | None, ...]
    """None for a chunk that failed twice, the second time alone."""
    seconds: float
    """Of the executions that succeeded."""
    failures: int = 0
    """Executions that raised."""

    @property
    def failed_chunks(self) -> int:
        return sum(chunk is None or not chunk.finite for chunk in self.chunks)

    @property
    def wholly_failed(self) -> bool:
        """Whether no chunk was computed."""
        return self.failed_chunks == len(self.chunks) > 0


NOTHING_COMPUTED: Final = StepOutcome((), 0.0)


class Computation:
    """One step on its way: handed over whole when it is made, and in pieces by `finish` if that fails.

    outcome = Computation(runner.begin, batch).finish()
    """

    def __init__(self, begin: Begin, batch: StepBatch) -> None:
        """Hand `batch` over and return. Never raises."""
        self._begin = begin
        self._batch = batch
        self._whole = _Attempt(begin, batch.chunks) if batch.chunks else None

    def finish(self) -> StepOutcome:
        """Its outcome, after at most 2 x chunks executions. Never raises."""
        if self._whole is None:
            return NOTHING_COMPUTED
        whole = self._whole.finish()
        if whole is not None:
            return StepOutcome(whole.chunks, whole.seconds)
        results: list[ChunkResult | None] = []
        seconds, failures = 0.0, 1
        left = _halves(self._batch.chunks)[::-1]
        while left:
            piece = left.pop()
            result = _Attempt(self._begin, piece).finish()
            if result is not None:
                results += result.chunks
                seconds += result.seconds
                continue
            failures += 1
            if len(piece) == 1:
                results.append(None)
            else:
                left += _halves(piece)[::-1]
        return StepOutcome(tuple(results), seconds, failures)


def _halves(chunks: tuple[Chunk, ...]) -> list[tuple[Chunk, ...]]:
    """Both halves; a single chunk is its own half, so that it is tried twice, too."""
    middle = len(chunks) // 2
    return [half for half in (chunks[:middle], chunks[middle:]) if half]


class _Attempt:
    """One execution; an error in either half must not reach the other sequences."""

    def __init__(self, begin: Begin, chunks: tuple[Chunk, ...]) -> None:
        self._chunks = chunks
        self._step: StepInFlight | None = None
        try:
            self._step = begin(StepBatch(chunks))
        except Exception as error:  # noqa: BLE001 - see above
            self._log(error)

    def finish(self) -> StepResult | None:
        """Its results; None if it failed."""
        # The next attempt comes after the handler: a traceback would keep the tensors of the failed one.
        step, self._step = self._step, None
        if step is None:
            return None
        try:
            result = step.finish()
            _check_results(self._chunks, result.chunks)
        except Exception as error:  # noqa: BLE001 - see above
            self._log(error)
            return None
        return result

    def _log(self, error: Exception) -> None:
        trace = error if len(self._chunks) == 1 else None
        _log.warning("step failed", chunks=len(self._chunks), error=type(error).__name__, exc_info=trace)


def _check_results(chunks: Sequence[Chunk], results: Sequence[ChunkResult]) -> None:
    """Raise ValueError unless there is a fitting result for every chunk, in order."""
    if len(results) != len(chunks):
        raise ValueError(f"{len(results)} results for {len(chunks)} chunks")
    for chunk, result in zip(chunks, results, strict=True):
        if result.sequence_id != chunk.sequence_id:
            raise ValueError(f"result of sequence {result.sequence_id} where {chunk.sequence_id} was due")
        if result.finite and (chunk.sample is not None) != bool(result.token_ids):
            raise ValueError(f"sequence {chunk.sequence_id}: a token exactly when one was asked for")
        wanted_tokens = chunk.sample is not None and chunk.sample.parameters.logprobs is not None
        wanted_prompt_tokens = len(chunk.score.next_token_ids) if chunk.score else 0
        if result.finite and (wanted_tokens * len(result.token_ids), wanted_prompt_tokens) != (
            result.logprobs.tokens if result.logprobs else 0,
            result.prompt_logprobs.tokens if result.prompt_logprobs else 0,
        ):
            raise ValueError(f"sequence {chunk.sequence_id}: other log probabilities than were asked for")
