"""Computing a step so that a chunk which cannot be computed costs its mates nothing.

When a step raises, it is computed again in halves, and those in halves, until what fails stands alone
(delta debugging in its simplest form; Zeller & Hildebrandt 2002). Computing a chunk again is harmless:
its KV writes are idempotent (same tokens, same positions, blocks that nobody else reads or writes before
they are committed), no chunk reads what another one of its step writes, and sampling noise is a function of
(seed, output index, token id) with no state. So the mates end up with the token ids of an undisturbed step.

A step that fails as a whole and not in halves, as one that was short of memory, costs nobody anything.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from warmfleet_worker.engine.batch import Chunk, ChunkResult, StepBatch, StepResult

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What came of a step, in the order of its chunks."""

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
        """Whether the runner computed nothing that is of use."""
        return self.failed_chunks == len(self.chunks) > 0


def compute_step(execute: Callable[[StepBatch], StepResult], batch: StepBatch) -> StepOutcome:
    """Have `batch` executed, in pieces if it must be: at most 2 x chunks executions. Never raises."""
    whole = _attempt(execute, batch.chunks)
    if whole is not None:
        return StepOutcome(whole.chunks, whole.seconds)
    results: list[ChunkResult | None] = []
    seconds, failures = 0.0, 1
    left = _halves(batch.chunks)[::-1]
    while left:
        piece = left.pop()
        result = _attempt(execute, piece)
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
    """Both halves; one chunk is its own half, so that it gets a second chance too."""
    middle = len(chunks) // 2
    return [half for half in (chunks[:middle], chunks[middle:]) if half]


def _attempt(execute: Callable[[StepBatch], StepResult], chunks: tuple[Chunk, ...]) -> StepResult | None:
    # The next attempt comes after this handler: a traceback would keep the tensors of the failed one alive.
    try:
        result = execute(StepBatch(chunks))
        _check_answers(chunks, result.chunks)
    except Exception as error:  # noqa: BLE001 - whatever it was, it must not reach the other sequences
        trace = error if len(chunks) == 1 else None
        _log.warning("step failed", chunks=len(chunks), error=type(error).__name__, exc_info=trace)
        return None
    return result


def _check_answers(chunks: Sequence[Chunk], answers: Sequence[ChunkResult]) -> None:
    """The runner answers for every chunk, in order: anything else is its bug, found before it spreads."""
    if len(answers) != len(chunks):
        raise ValueError(f"{len(answers)} results for {len(chunks)} chunks")
    for chunk, answer in zip(chunks, answers, strict=True):
        if answer.sequence_id != chunk.sequence_id:
            raise ValueError(f"result of sequence {answer.sequence_id} where {chunk.sequence_id} was due")
        if answer.finite and (chunk.sample is not None) != (answer.next_token_id is not None):
            raise ValueError(f"sequence {chunk.sequence_id}: a token exactly when one was asked for")
        wanted_tokens = chunk.sample is not None and chunk.sample.parameters.logprobs is not None
        wanted_prompt_tokens = len(chunk.score.next_token_ids) if chunk.score else 0
        if answer.finite and (wanted_tokens, wanted_prompt_tokens) != (
            answer.logprobs.tokens if answer.logprobs else 0,
            answer.prompt_logprobs.tokens if answer.prompt_logprobs else 0,
        ):
            raise ValueError(f"sequence {chunk.sequence_id}: other log probabilities than were asked for")
