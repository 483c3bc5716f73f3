"""Which tokens of which sequence are computed next, and what a finished step means for each of them.

`schedule` turns the present state into a `StepPlan`; the engine has the runner compute it; `apply` (or
`fail`) takes the outcome. Nothing here waits, asks for the time or touches a tensor.

The order of a step: every decode first, so that streams keep flowing; then running prefills; then waiting
sequences, in order of arrival, while seats, token budget and blocks last. When a decode finds the pool
full, the youngest running sequence is preempted: it gives all its blocks back and is computed again later,
mostly from its own blocks in the cache. The oldest sequence is therefore never stopped, and all end.
"""

import bisect
import math
from dataclasses import dataclass
from typing import Final

import msgspec

from warmfleet_worker.batch import Chunk, ChunkResult, SampleRequest, ScoreRequest, StepBatch, StepResult
from warmfleet_worker.engine_messages import SequenceUpdate
from warmfleet_worker.kv_cache.block_pool import BlockPool
from warmfleet_worker.kv_cache.block_table import blocks_for
from warmfleet_worker.kv_cache.prefix_cache import NO_HIT, PrefixCache, PrefixHit
from warmfleet_worker.sequence import Sequence, SequenceState
from warmfleet_worker.step_time import MIN_AUTO_BATCHED_TOKENS

WATERMARK_RATIO: Final = 0.01
"""Share of the pool that an admission leaves to the sequences that already run."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Bounds of what runs together."""

    max_running_sequences: int = 64
    max_batched_tokens: int = 0
    """Tokens per step. 0 = what the measured rate computes in 100 ms; then decodes are never cut, and
    prefill always gets at least 32 tokens beside them."""
    max_model_length_tokens: int = 4096
    """Prompt and output together."""
    prefix_caching: bool = True
    max_waiting_sequences: int = 4096
    """The server refuses earlier and politely; this is the engine's own bound."""

    def __post_init__(self) -> None:
        if self.max_running_sequences < 1 or self.max_waiting_sequences < 1:
            raise ValueError("an engine needs at least one seat to run and one to wait")
        if self.max_batched_tokens < 0 or self.max_model_length_tokens < 2:
            raise ValueError("a token budget is 0 (auto) or more, a context at least two tokens")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: the batch, and the sequence of each of its chunks in the same order."""

    batch: StepBatch
    sequences: tuple[Sequence, ...]
    preempted_sequences: int
    admissions: tuple[SequenceUpdate, ...]
    """First updates of the sequences that start with this step."""


class Scheduler:
    """Continuous batching over one block pool."""

    def __init__(self, pool: BlockPool, cache: PrefixCache, settings: SchedulerSettings) -> None:
        self._pool = pool
        self._cache = cache
        self._settings = settings
        self._block_size_tokens = cache.block_size_tokens
        self._watermark_blocks = math.ceil(WATERMARK_RATIO * pool.total_blocks)
        self._waiting: list[Sequence] = []  # by arrival; a preempted sequence goes back to its old place
        self._running: list[Sequence] = []  # by admission
        self._sequences: dict[int, Sequence] = {}

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._sequences

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence that fits the pool and the context."""
        assert sequence.sequence_id not in self._sequences
        self._sequences[sequence.sequence_id] = sequence
        sequence.uncached_tokens = len(sequence.token_ids) - self._match(sequence).cached_tokens
        bisect.insort(self._waiting, sequence, key=_arrival)

    def abort(self, sequence_id: int) -> SequenceUpdate | None:
        """End a sequence and free its blocks now; None for one that is not here (any more)."""
        sequence = self._sequences.get(sequence_id)
        return None if sequence is None else self._finish(sequence, "abort")

    def schedule(self, budget_tokens: int) -> StepPlan:
        """Choose the next step's chunks and give them blocks. Empty only when nothing is to be done."""
        planned, preempted_sequences = self._plan_decodes()
        allowance = self._prefill_allowance(budget_tokens, len(planned))
        for sequence in self._running:
            if sequence not in planned and allowance > 0:
                planned[sequence] = min(sequence.uncomputed_tokens, allowance)
                allowance -= planned[sequence]
        # After a preemption the victim stands first and needs more than it just gave: nobody comes in.
        admissions = self._admit(planned, allowance, budget_tokens)
        chunks = tuple(self._chunk(sequence, tokens) for sequence, tokens in planned.items())
        return StepPlan(StepBatch(chunks), tuple(planned), preempted_sequences, tuple(admissions))

    def apply(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        """Take the outcome of a step: commit what is full and finite, append tokens, end sequences."""
        return [
            update
            for sequence, chunk, outcome in zip(plan.sequences, plan.batch.chunks, result.chunks, strict=True)
            if (update := self._apply_chunk(sequence, chunk, outcome)) is not None
        ]

    def fail(self, plan: StepPlan, error: str) -> list[SequenceUpdate]:
        """The step was not computed: its sequences end, and nothing it wrote is ever matched."""
        return [self._finish(sequence, "error", error) for sequence in plan.sequences]

    # Planning.

    def _plan_decodes(self) -> tuple[dict[Sequence, int], int]:
        planned: dict[Sequence, int] = {}
        preempted_sequences = 0
        for sequence in tuple(self._running):
            if sequence.state is not SequenceState.RUNNING or sequence.uncomputed_tokens != 1:
                continue
            missing = self._blocks(len(sequence.token_ids)) - len(sequence.table)
            while missing > self._pool.available_blocks:
                victim = max(self._running, key=_arrival)
                planned.pop(victim, None)
                self._preempt(victim)
                preempted_sequences += 1
                if victim is sequence:
                    break
            if sequence.state is SequenceState.RUNNING:
                if missing > 0:
                    sequence.table.extend(self._pool.allocate(missing))
                planned[sequence] = 1
        return planned, preempted_sequences

    def _prefill_allowance(self, budget_tokens: int, decodes: int) -> int:
        least = 0 if self._settings.max_batched_tokens else MIN_AUTO_BATCHED_TOKENS
        return max(budget_tokens - decodes, least)

    def _seats(self, budget_tokens: int) -> int:
        """Under a fixed budget every running sequence must find its one token in it."""
        seats = self._settings.max_running_sequences
        return min(seats, budget_tokens) if self._settings.max_batched_tokens else seats

    def _admit(
        self, planned: dict[Sequence, int], allowance: int, budget_tokens: int
    ) -> list[SequenceUpdate]:
        """Start waiting sequences and plan their first chunks; returns the first updates of new ones."""
        seats = self._seats(budget_tokens)
        admissions: list[SequenceUpdate] = []
        place = 0
        while allowance > 0 and place < len(self._waiting) and len(self._running) < seats:
            sequence = self._waiting[place]
            hit = self._match(sequence)
            sequence.uncached_tokens = len(sequence.token_ids) - hit.cached_tokens
            if self._leader(sequence, hit) in planned:
                place += 1
                continue
            if not self._start(sequence, hit):
                break  # nobody overtakes a sequence that waits for blocks
            planned[sequence] = min(sequence.uncomputed_tokens, allowance)
            allowance -= planned[sequence]
            if not sequence.admitted:
                sequence.admitted = True
                admissions.append(self._admission(sequence))
        return admissions

    def _leader(self, sequence: Sequence, hit: PrefixHit) -> Sequence | None:
        """Who computes the next block that `sequence` could reuse.

        A follower is passed over only while its leader is part of the very step being planned: each step
        of the wait brings the awaited block nearer, the wait ends with the leader's prefill at the latest,
        and a leader that left, failed or was preempted is followed no longer.
        """
        usable_tokens = hit.cached_tokens + self._block_size_tokens
        if not sequence.reads_cache or usable_tokens >= len(sequence.token_ids):
            return None  # the last token is computed anyway, and the block it stands in with it
        leader = self._cache.leader_of(sequence.block_hashes[len(hit.blocks)])
        return None if leader is None else self._sequences[leader]

    def _start(self, sequence: Sequence, hit: PrefixHit) -> bool:
        """Give a waiting sequence its blocks and a seat, if there are enough blocks."""
        # All blocks of the known tokens at once: a prefill that has begun is never stuck half-way.
        missing = self._blocks(len(sequence.token_ids)) - len(hit.blocks)
        watermark_blocks = self._watermark_blocks if self._running else 0
        if missing + hit.evictable_blocks + watermark_blocks > self._pool.available_blocks:
            return False
        self._pool.pin(hit.blocks)
        sequence.table.adopt(hit.blocks)
        sequence.table.extend(self._pool.allocate(missing))
        sequence.computed_tokens = hit.cached_tokens
        sequence.state = SequenceState.RUNNING
        if sequence.uses_cache:
            self._cache.lead(sequence.sequence_id, sequence.block_hashes[len(hit.blocks) :])
        self._waiting.remove(sequence)
        self._running.append(sequence)
        return True

    def _match(self, sequence: Sequence) -> PrefixHit:
        if not sequence.reads_cache:
            return NO_HIT
        return self._cache.match(sequence.block_hashes, len(sequence.token_ids))

    def _admission(self, sequence: Sequence) -> SequenceUpdate:
        full_blocks = sequence.prompt_tokens // self._block_size_tokens
        return SequenceUpdate(
            sequence_id=sequence.sequence_id,
            cached_tokens=sequence.computed_tokens,
            last_block=sequence.block_hashes[full_blocks - 1] if full_blocks else b"",
        )

    def _chunk(self, sequence: Sequence, tokens: int) -> Chunk:
        first = sequence.computed_tokens
        end = first + tokens
        sample = None
        if end == len(sequence.token_ids) and sequence.wants_token:
            known = tuple(sequence.token_ids) if sequence.sampling.has_penalty else ()
            sample = SampleRequest(sequence.sampling, sequence.output_tokens, known)
        return Chunk(
            sequence_id=sequence.sequence_id,
            token_ids=tuple(sequence.token_ids[first:end]),
            first_position=first,
            block_ids=sequence.table.ids(self._blocks(end)),
            sample=sample,
            score=_score_request(sequence, first, end),
        )

    # Outcomes.

    def _apply_chunk(self, sequence: Sequence, chunk: Chunk, outcome: ChunkResult) -> SequenceUpdate | None:
        if not outcome.finite:
            return self._finish(sequence, "error", "the model produced a value that is not finite")
        sequence.computed_tokens += len(chunk.token_ids)
        if sequence.uses_cache:
            self._commit_full_blocks(sequence)
        update = SequenceUpdate(
            sequence_id=sequence.sequence_id,
            token_ids=[] if outcome.next_token_id is None else [outcome.next_token_id],
            logprobs=outcome.logprobs,
            prompt_logprobs=outcome.prompt_logprobs,
        )
        if outcome.prompt_logprobs is not None:
            sequence.scored_tokens += outcome.prompt_logprobs.tokens
        sequence.token_ids += update.token_ids
        if chunk.sample is not None:
            reason = sequence.finish_reason()
        else:
            reason = "" if sequence.wants_token or sequence.uncomputed_tokens else "length"
        if reason:
            self._finish(sequence, reason)
            return msgspec.structs.replace(update, finish_reason=reason)
        return update if update.token_ids or update.prompt_logprobs is not None else None

    def _commit_full_blocks(self, sequence: Sequence) -> None:
        table = sequence.table
        full_blocks = sequence.computed_tokens // self._block_size_tokens
        first = table.committed_blocks
        if first == full_blocks:
            return
        hashes = sequence.block_hashes
        if len(hashes) < full_blocks:
            computed = sequence.token_ids[: sequence.computed_tokens]
            self._cache.extend_hashes(hashes, sequence.root, computed)
        for index in range(first, full_blocks):
            table.commit_next(self._pool.commit(table.next_uncommitted, hashes[index]))
        self._cache.stop_leading(sequence.sequence_id, hashes[first:full_blocks])

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._give_back(sequence)
        sequence.state = SequenceState.WAITING
        sequence.computed_tokens = 0
        sequence.uncached_tokens = len(sequence.token_ids) - self._match(sequence).cached_tokens
        bisect.insort(self._waiting, sequence, key=_arrival)

    def _finish(self, sequence: Sequence, reason: str, error: str = "") -> SequenceUpdate:
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._give_back(sequence)
        sequence.state = SequenceState.FINISHED
        del self._sequences[sequence.sequence_id]
        return SequenceUpdate(sequence_id=sequence.sequence_id, finish_reason=reason, error=error)

    def _give_back(self, sequence: Sequence) -> None:
        self._cache.stop_leading(
            sequence.sequence_id, sequence.block_hashes[sequence.table.committed_blocks :]
        )
        self._pool.release(sequence.table.take_all())

    def _blocks(self, tokens: int) -> int:
        return blocks_for(tokens, self._block_size_tokens)


def _score_request(sequence: Sequence, first: int, end: int) -> ScoreRequest | None:
    """What tokens `first` to `end` of a sequence say about its prompt, as far as that is not told yet."""
    start = max(first, sequence.scored_tokens)
    stop = min(end, sequence.prompt_tokens - 1)
    if sequence.sampling.prompt_logprobs is None or start >= stop:
        return None
    return ScoreRequest(
        first=start - first,
        next_token_ids=tuple(sequence.token_ids[start + 1 : stop + 1]),
        top=sequence.sampling.prompt_logprobs,
    )


def _arrival(sequence: Sequence) -> int:
    return sequence.arrival
