"""A runner without a model, and the naive computation of what it must generate.

The arena holds one number per slot. Writing a token stores a digest of it and of the slot before it, *read
through the block table*; choosing a token digests every slot from position 0 on, read the same way. So a
wrong block, an unwritten slot, a slot overwritten by another sequence or a commit of unfinished content
changes the output. `naive_output` knows no blocks at all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from warmfleet_worker.batch import Chunk, ChunkResult, StepBatch, StepResult
from warmfleet_worker.sampling import SamplingParameters

VOCABULARY_SIZE = 500
NOT_FINITE_TOKEN_ID = 600
"""A chunk that computes this token is not finite."""
EXPLODING_TOKEN_ID = 601
"""A step that computes this token raises."""

_START = 0
_POISON = -1


class FakeRunnerError(Exception):
    """What a runner raises when its device fails."""


@dataclass
class RunnerCounters:
    steps: int = 0
    computed_tokens: int = 0
    largest_batch: int = 0
    partial_prefills: int = 0
    poisoned_blocks: int = 0


class FakeRunner:
    """Deterministic, greedy, exact: equal tokens in, equal tokens out, in any batch and any chunking."""

    def __init__(
        self, total_blocks: int, block_size_tokens: int, *, seconds_per_token: float = 0.001
    ) -> None:
        self.total_blocks = total_blocks
        self.block_size_tokens = block_size_tokens
        self.counters = RunnerCounters()
        self.batches: list[StepBatch] = []
        self.fail_next_step = False
        self._seconds_per_token = seconds_per_token
        self._arena = [_POISON] * (total_blocks * block_size_tokens)

    def execute(self, batch: StepBatch) -> StepResult:
        self.batches.append(batch)
        if len(self.batches) > 1000:
            del self.batches[:500]
        tokens = batch.scheduled_tokens
        self.counters.steps += 1
        self.counters.computed_tokens += tokens
        self.counters.largest_batch = max(self.counters.largest_batch, len(batch.chunks))
        self._check_writes(batch)
        if self.fail_next_step or any(EXPLODING_TOKEN_ID in chunk.token_ids for chunk in batch.chunks):
            self.fail_next_step = False
            for chunk in batch.chunks:  # the device died after it had written some of it
                for position in range(chunk.first_position, chunk.first_position + len(chunk.token_ids)):
                    self._arena[self._slot(chunk, position)] = _POISON
            raise FakeRunnerError("the device is gone")
        results = tuple(self._compute(chunk) for chunk in batch.chunks)
        return StepResult(results, seconds=0.002 + tokens * self._seconds_per_token)

    def poison_blocks(self, block_ids: Sequence[int]) -> None:
        self.counters.poisoned_blocks += len(block_ids)
        for block_id in block_ids:
            first = block_id * self.block_size_tokens
            self._arena[first : first + self.block_size_tokens] = [_POISON] * self.block_size_tokens

    def _compute(self, chunk: Chunk) -> ChunkResult:
        for offset, token_id in enumerate(chunk.token_ids):
            position = chunk.first_position + offset
            before = _START if position == 0 else self._arena[self._slot(chunk, position - 1)]
            self._arena[self._slot(chunk, position)] = _extend(before, token_id)
        if NOT_FINITE_TOKEN_ID in chunk.token_ids:
            for offset in range(len(chunk.token_ids)):
                self._arena[self._slot(chunk, chunk.first_position + offset)] = _POISON
            return ChunkResult(chunk.sequence_id, finite=False, next_token_id=None)
        if chunk.sample is None:
            self.counters.partial_prefills += 1
            return ChunkResult(chunk.sequence_id, finite=True, next_token_id=None)
        end = chunk.first_position + len(chunk.token_ids)
        read = [self._arena[self._slot(chunk, position)] for position in range(end)]
        return ChunkResult(chunk.sequence_id, finite=True, next_token_id=_choose(read))

    def _slot(self, chunk: Chunk, position: int) -> int:
        block = chunk.block_ids[position // self.block_size_tokens]
        return block * self.block_size_tokens + position % self.block_size_tokens

    def _check_writes(self, batch: StepBatch) -> None:
        """No slot is written twice in a step, and none that another chunk of the step reads."""
        written: dict[int, int] = {}
        for chunk in batch.chunks:
            for position in range(chunk.first_position, chunk.first_position + len(chunk.token_ids)):
                slot = self._slot(chunk, position)
                assert slot not in written, f"slot {slot} has two writers"
                written[slot] = chunk.sequence_id
        for chunk in batch.chunks:
            for position in range(chunk.first_position):
                assert self._slot(chunk, position) not in written, "a chunk reads what another one writes"


def naive_output(
    prompt: Sequence[int], sampling: SamplingParameters, limit_tokens: int = 1_000_000
) -> tuple[list[int], str]:
    """Output tokens and finish reason of one sequence, computed without batches, blocks or caches."""
    slots: list[int] = []
    for token_id in prompt:
        slots.append(_extend(slots[-1] if slots else _START, token_id))
    output: list[int] = []
    while len(output) < sampling.max_output_tokens and len(slots) < limit_tokens:
        output.append(_choose(slots))
        slots.append(_extend(slots[-1], output[-1]))
        if output[-1] in sampling.stop_token_ids:
            return output, "stop"
    return output, "length"


def _extend(before: int, token_id: int) -> int:
    return _digest(f"{before},{token_id}")


def _choose(slots: Sequence[int]) -> int:
    return _digest(",".join(map(str, slots))) % VOCABULARY_SIZE


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
