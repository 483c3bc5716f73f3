"""A runner without a model, and the naive computation of what it must generate.

The arena holds one number per slot. Writing a token stores a digest of it and of the slot before it, *read
through the block table*; choosing a token digests every slot from position 0 on, read the same way. So a
wrong block, an unwritten slot, a slot overwritten by another sequence or a commit of unfinished content
changes the output. `naive_output` knows no blocks at all.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

from warmfleet_contracts.cache.blocks import CacheIdentity
from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_worker.engine.batch import Chunk, ChunkResult, StepBatch, StepResult
from warmfleet_worker.engine.engine import Engine
from warmfleet_worker.engine.logprobs import TokenLogprobs, joined
from warmfleet_worker.engine.messages import StepReport
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.scheduler import SchedulerSettings
from warmfleet_worker.engine.sequence import Sequence as EngineSequence
from warmfleet_worker.engine.step_time import TARGET_STEP_SECONDS

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
    scored_tokens: int = 0
    poisoned_blocks: int = 0


class FakeRunner:
    """Deterministic, greedy, exact: equal tokens in, equal tokens out, in any batch and any chunking."""

    exact = True

    def __init__(
        self, total_blocks: int, block_size_tokens: int, *, seconds_per_token: float = 0.001
    ) -> None:
        self.total_blocks = total_blocks
        self.block_size_tokens = block_size_tokens
        self.counters = RunnerCounters()
        self.batches: list[StepBatch] = []
        self.fail_next_step = False
        self.largest_possible_batch = 1_000_000
        """More chunks than this, and the memory does not suffice."""
        self.broken = False
        self.lost_sequence_ids: set[int] = set()
        """Of the batches that came while it was broken."""
        self.violations: list[str] = []
        """What the engine asked for and must never ask for."""
        self.is_computing = False
        """Between `begin` and `finish`."""
        self.fails_at_once = False
        """A step that fails does so when it is begun."""
        self.tokens_per_step = 1
        """Of each sequence; the keys and values of all but the first are not computed."""
        self.flat_tokens = 0
        """Steps of at most so many tokens take the same time."""
        self._seconds_per_token = seconds_per_token
        self._prompt_tokens: dict[int, int] = {}
        self._arena = [_POISON] * (total_blocks * block_size_tokens)

    def begin(self, batch: StepBatch) -> "FakeStep":
        with self._noting_violations():
            assert not self.is_computing, "two steps at once"
            self._begin(batch)
        if self.fails_at_once and self._fails(batch):
            self._lose(batch)
        self.is_computing = True
        return FakeStep(self, batch)

    def finish(self, batch: StepBatch) -> StepResult:
        with self._noting_violations():
            assert self.is_computing, "no step was begun"
            self.is_computing = False
            return self._finish(batch)

    @contextmanager
    def _noting_violations(self) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            self.violations.append(str(error))  # the engine survives it, the test must not
            raise

    def _begin(self, batch: StepBatch) -> None:
        self.batches.append(batch)
        if len(self.batches) > 1000:
            del self.batches[:500]
        self.counters.steps += 1
        self.counters.computed_tokens += batch.scheduled_tokens
        self.counters.largest_batch = max(self.counters.largest_batch, len(batch.chunks))
        self._check_writes(batch)

    def _finish(self, batch: StepBatch) -> StepResult:
        if self._fails(batch):
            self._lose(batch)
        results = tuple(self._compute(chunk) for chunk in batch.chunks)
        seconds = 0.002 + max(batch.scheduled_tokens, self.flat_tokens) * self._seconds_per_token
        return StepResult(results, seconds)

    def _lose(self, batch: StepBatch) -> None:
        self.fail_next_step = False
        for chunk in batch.chunks:  # the device died after it had written some of it
            for position in range(chunk.first_position, chunk.first_position + len(chunk.token_ids)):
                self._arena[self._slot(chunk, position)] = _POISON
        raise FakeRunnerError("the device is gone")

    def _fails(self, batch: StepBatch) -> bool:
        if self.broken:
            self.lost_sequence_ids.update(chunk.sequence_id for chunk in batch.chunks)
        explodes = any(EXPLODING_TOKEN_ID in chunk.token_ids for chunk in batch.chunks)
        too_large = len(batch.chunks) > self.largest_possible_batch
        return self.broken or self.fail_next_step or explodes or too_large

    def poison_blocks(self, block_ids: Sequence[int]) -> None:
        self.counters.poisoned_blocks += len(block_ids)
        for block_id in block_ids:
            first = block_id * self.block_size_tokens
            self._arena[first : first + self.block_size_tokens] = [_POISON] * self.block_size_tokens

    def block_bytes(self, block_id: int) -> bytes:
        first = block_id * self.block_size_tokens
        return repr(self._arena[first : first + self.block_size_tokens]).encode()

    def flip_bit(self, block_id: int, offset: int = 0) -> None:
        """Change what a slot of a block holds."""
        self._arena[block_id * self.block_size_tokens + offset] ^= 1

    def _compute(self, chunk: Chunk) -> ChunkResult:
        for offset, token_id in enumerate(chunk.token_ids):
            position = chunk.first_position + offset
            before = _START if position == 0 else self._arena[self._slot(chunk, position - 1)]
            self._arena[self._slot(chunk, position)] = _extend(before, token_id)
        if NOT_FINITE_TOKEN_ID in chunk.token_ids:
            for offset in range(len(chunk.token_ids)):
                self._arena[self._slot(chunk, chunk.first_position + offset)] = _POISON
            return ChunkResult(chunk.sequence_id, finite=False)
        prompt_logprobs = self._score(chunk)
        if chunk.sample is None:
            self.counters.partial_prefills += 1
            return ChunkResult(chunk.sequence_id, finite=True, prompt_logprobs=prompt_logprobs)
        end = chunk.first_position + len(chunk.token_ids)
        prompt_tokens = end - chunk.sample.output_index
        known = self._prompt_tokens.setdefault(chunk.sequence_id, prompt_tokens)
        assert known == prompt_tokens, "noise of another token"
        read = [self._arena[self._slot(chunk, position)] for position in range(end)]
        top = chunk.sample.parameters.logprobs
        pairs: list[tuple[list[int], int]] = []
        while len(pairs) < self.tokens_per_step:
            pairs.append((list(read), _choose(read)))
            read.append(_extend(read[-1], pairs[-1][1]))
        return ChunkResult(
            chunk.sequence_id,
            finite=True,
            token_ids=tuple(token_id for _, token_id in pairs),
            logprobs=None if top is None else naive_logprobs(pairs, top),
            prompt_logprobs=prompt_logprobs,
        )

    def _score(self, chunk: Chunk) -> TokenLogprobs | None:
        if chunk.score is None:
            return None
        self.counters.scored_tokens += len(chunk.score.next_token_ids)
        end = chunk.first_position + chunk.score.first + 1
        read = [self._arena[self._slot(chunk, position)] for position in range(end)]
        pairs = []
        for offset, next_token_id in enumerate(chunk.score.next_token_ids):
            if offset:
                read.append(self._arena[self._slot(chunk, end - 1 + offset)])
            pairs.append((tuple(read), next_token_id))
        return naive_logprobs(pairs, chunk.score.top)

    def _slot(self, chunk: Chunk, position: int) -> int:
        block = chunk.block_ids[position // self.block_size_tokens]
        return block * self.block_size_tokens + position % self.block_size_tokens

    def _check_writes(self, batch: StepBatch) -> None:
        """No slot is written twice in a step, and none that another chunk of the step reads."""
        written: dict[int, int] = {}
        for chunk in batch.chunks:
            assert chunk.token_ids, "a chunk without tokens"
            for position in range(chunk.first_position, chunk.first_position + len(chunk.token_ids)):
                slot = self._slot(chunk, position)
                assert slot not in written, f"slot {slot} has two writers"
                written[slot] = chunk.sequence_id
        for chunk in batch.chunks:
            for position in range(chunk.first_position):
                assert self._slot(chunk, position) not in written, "a chunk reads what another one writes"


@dataclass(frozen=True)
class FakeStep:
    """A step in flight."""

    runner: FakeRunner
    batch: StepBatch

    def finish(self) -> StepResult:
        return self.runner.finish(self.batch)


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


def naive_prompt_logprobs(prompt: Sequence[int], top: int) -> TokenLogprobs:
    """The prompt log probabilities that a sequence must return, computed from the prompt alone."""
    slots: list[int] = []
    pairs = []
    for token_id, next_token_id in pairwise(prompt):
        slots.append(_extend(slots[-1] if slots else _START, token_id))
        pairs.append((tuple(slots), next_token_id))
    return naive_logprobs(pairs, top)


def naive_logprobs(pairs: Sequence[tuple[Sequence[int], int]], top: int) -> TokenLogprobs:
    """A digest of the slots before each token and of the token, in the place of log probabilities."""
    values, top_ids, top_values = array("f"), array("I"), array("f")
    for slots, token_id in pairs:
        digest = _digest(",".join(map(str, (*slots, token_id))))
        values.append(-(digest % 4096) / 64)
        for place in range(top):
            top_ids.append(digest % VOCABULARY_SIZE + place)
            top_values.append(-float(place))
    return TokenLogprobs(top, values.tobytes(), top_ids.tobytes(), top_values.tobytes())


class EngineDriver:
    """An `Engine` over a `FakeRunner`, its reports collected, its invariants checked after every step."""

    def __init__(
        self,
        *,
        total_blocks: int = 64,
        block_size_tokens: int = 4,
        window_tokens: int = 0,
        max_running_sequences: int = 8,
        max_batched_tokens: int = 64,
        max_model_length_tokens: int = 256,
        prefix_caching: bool = True,
        max_waiting_sequences: int = 4096,
        verify_hits_one_in: int = 0,
        target_step_seconds: float = TARGET_STEP_SECONDS,
    ) -> None:
        self.runner = FakeRunner(total_blocks, block_size_tokens)
        self.engine = Engine(
            self.runner,
            CacheIdentity(b"identity-of-test"),
            "epoch-1",
            block_size_tokens,
            window_tokens,
            SchedulerSettings(
                max_running_sequences=max_running_sequences,
                max_batched_tokens=max_batched_tokens,
                max_model_length_tokens=max_model_length_tokens,
                prefix_caching=prefix_caching,
                max_waiting_sequences=max_waiting_sequences,
            ),
            target_step_seconds=target_step_seconds,
            vocabulary_size=1000,
            verify_hits_one_in=verify_hits_one_in,
            poison=True,
        )
        self.prompts: dict[int, list[int]] = {}
        self.sampling: dict[int, SamplingParameters] = {}
        self.outputs: dict[int, list[int]] = {}
        self.finish_reasons: dict[int, str] = {}
        self.errors: dict[int, str] = {}
        self.cached_tokens: dict[int, int] = {}
        self.last_blocks: dict[int, bytes] = {}
        self.logprobs: dict[int, TokenLogprobs] = {}
        self.prompt_logprobs: dict[int, TokenLogprobs] = {}
        self.resident: set[bytes] = set()
        """What a router believes that follows the reports."""
        self.preempted_sequences = 0
        self.evicted_blocks = 0
        self.failed_executions = 0
        self.verified_blocks = 0
        self.mismatched_blocks = 0
        self._seq = 0

    def add(
        self,
        sequence_id: int,
        prompt: Sequence[int],
        *,
        max_output_tokens: int = 8,
        stop_token_ids: frozenset[int] = frozenset(),
        salt: bytes = b"",
        use_prefix_cache: bool = True,
        may_read_cache: bool = True,
        priority: int = 0,
        is_idle: bool = False,
        unused_seconds: float | None = None,
        **parameters: Any,
    ) -> None:
        """`parameters` are more of `SamplingParameters`; the runner ignores them."""
        sampling = SamplingParameters(
            temperature=0.0, max_output_tokens=max_output_tokens, stop_token_ids=stop_token_ids, **parameters
        )
        self.prompts[sequence_id] = list(prompt)
        self.sampling[sequence_id] = sampling
        self.outputs[sequence_id] = []
        self.engine.add(
            add_sequence(
                sequence_id,
                list(prompt),
                sampling,
                salt=salt,
                use_prefix_cache=use_prefix_cache,
                may_read_cache=may_read_cache,
                priority=priority,
                is_idle=is_idle,
                unused_seconds=unused_seconds,
            )
        )

    def step(self, between: Callable[[], None] = lambda: None) -> StepReport:
        """One step; its updates are added to those of the steps before. `between` is called in its middle."""
        begun = self.engine.begin()
        between()
        report = self.engine.finish(begun)
        for update in report.updates:
            assert update.sequence_id not in self.finish_reasons, "an update after the last one"
            if update.cached_tokens is not None:
                assert update.sequence_id not in self.cached_tokens, "admitted twice"
                self.cached_tokens[update.sequence_id] = update.cached_tokens
                self.last_blocks[update.sequence_id] = update.last_block
            self.outputs[update.sequence_id] += update.token_ids
            for collected, update_logprobs in (
                (self.logprobs, update.logprobs),
                (self.prompt_logprobs, update.prompt_logprobs),
            ):
                if (together := joined(collected.get(update.sequence_id), update_logprobs)) is not None:
                    collected[update.sequence_id] = together
            if update.finish_reason:
                self.finish_reasons[update.sequence_id] = update.finish_reason
                self.errors[update.sequence_id] = update.error
        self.preempted_sequences += report.preempted_sequences
        self.evicted_blocks += report.evicted_blocks
        self.failed_executions += report.failed_executions
        self.verified_blocks += report.verified_blocks
        self.mismatched_blocks += report.mismatched_blocks
        self._replay(report)
        self.check()
        requests = [sequence for sequence in self.engine._scheduler.running if not sequence.is_idle]
        held = {block.block_id for sequence in requests for block in sequence.table.blocks}
        assert len(held) <= report.load.pinned_blocks <= self.engine._pool.pinned_blocks
        return report

    def run(self, limit_steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        for _ in range(limit_steps):
            if not self.engine.has_work:
                self.check_idle()
                return
            self.step()
        raise AssertionError(f"still at work after {limit_steps} steps")

    def expected(self, sequence_id: int) -> tuple[list[int], str]:
        """Output and finish reason by the naive computation."""
        return naive_output(
            self.prompts[sequence_id], self.sampling[sequence_id], self.engine.max_model_length_tokens
        )

    def assert_exact(self, *sequence_ids: int) -> None:
        for sequence_id in sequence_ids:
            got = (self.outputs[sequence_id], self.finish_reasons[sequence_id])
            assert got == self.expected(sequence_id), f"sequence {sequence_id}"

    def check(self) -> None:
        """What holds after every step."""
        assert not self.runner.violations
        pool, scheduler = self.engine._pool, self.engine._scheduler
        assert pool.free_blocks + pool.evictable_blocks + pool.pinned_blocks == pool.total_blocks
        assert self.resident == pool.resident_hashes, "the events do not add up to what is resident"
        holders: Counter[int] = Counter()
        writers: Counter[int] = Counter()
        for sequence in scheduler.running:
            table = sequence.table
            assert len(table) * self.engine._block_size_tokens >= sequence.computed_tokens
            for index, block in enumerate(table.blocks):
                holders[block.block_id] += 1
                if index < table.committed_blocks:
                    assert block.block_hash == sequence.block_hashes[index]
                else:
                    assert block.block_hash is None
                    writers[block.block_id] += 1
        for sequence in scheduler.waiting:
            if sequence.reads_cache:
                self._check_match(sequence)
        assert pool.pinned_blocks == len(holders)
        assert all(holders[block_id] == 1 for block_id in writers), "a writable block with two holders"
        assert all(holders[block.block_id] == block.references for block in pool._blocks)
        assert list(scheduler.waiting) == sorted(scheduler.waiting, key=lambda sequence: sequence.rank)
        idle = [sequence for sequence in scheduler._sequences.values() if sequence not in scheduler.running]
        assert not any(len(sequence.table) for sequence in idle), "only running sequences hold blocks"
        assert len(idle) == len(scheduler.waiting) + scheduler.paused_sequences

    def _check_match(self, sequence: EngineSequence) -> None:
        """The incremental match equals a full one, for every previous result; residency has no gaps."""
        cache, pool, tokens = self.engine._cache, self.engine._pool, len(sequence.token_ids)
        hit = cache.match(sequence.block_hashes, tokens)
        assert hit.evictable_blocks == sum(not block.references for block in hit.blocks)
        matched = len(hit.blocks)
        for previous in {0, sequence.matched_blocks, len(sequence.block_hashes)}:
            assert cache.matched_blocks(sequence.block_hashes, tokens, previous) == matched
        resident = [pool.find(block_hash) is not None for block_hash in sequence.block_hashes]
        assert resident == sorted(resident, reverse=True)

    def check_idle(self) -> None:
        """What holds when nothing is left to do: all blocks are released, no block has a leader."""
        pool = self.engine._pool
        assert pool.pinned_blocks == 0
        assert pool.free_blocks + pool.evictable_blocks == pool.total_blocks
        assert self.engine._cache.led_blocks == 0
        assert self.finish_reasons.keys() == self.prompts.keys(), "a sequence was forgotten"

    def _replay(self, report: StepReport) -> None:
        changed = bool(report.cleared or report.stored or report.removed)
        assert report.seq == self._seq + changed
        self._seq = report.seq
        if report.cleared:
            self.resident.clear()
        for block_hash in report.stored:
            assert block_hash not in self.resident, "stored twice"
            self.resident.add(block_hash)
        for block_hash in report.removed:
            self.resident.remove(block_hash)


def _extend(before: int, token_id: int) -> int:
    return _digest(f"{before},{token_id}")


def _choose(slots: Sequence[int]) -> int:
    return _digest(",".join(map(str, slots))) % VOCABULARY_SIZE


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
