"""Continuous batching with chunked prefill: which tokens of which sequences the next step computes.

`schedule` turns the present state into a `StepPlan`; the engine has the runner compute it; `apply` takes
the outcome. Nothing here waits, reads a clock or touches a tensor. (Iteration-level scheduling: Yu et al.
2022, Orca; chunked prefill beside decodes: Agrawal et al. 2024, Sarathi-Serve, arXiv:2403.02310.)

A sequence's rank is its priority, then its arrival. A step takes all decodes first; then prefills, running
and waiting ones alike, the best rank first, while seats, token budget and blocks last. When a decode finds
the pool full, the running sequence of the worst rank is preempted: it releases all its blocks and is
computed again later, mostly from its own cached blocks. The best sequence is therefore never preempted, and
all sequences of equal priority finish.

A follower waits for a block that another sequence, its leader, computes now. Meanwhile the leader inherits
the follower's rank (priority inheritance, Sha et al. 1990), so that no sequence of a worse rank delays it,
and a seat and the blocks that the follower will need are reserved. The wait is bounded by the leader's
prefill: a leader that ends, fails, is preempted or paused leads no longer, and the follower takes over.

An idle sequence is one that no client waits for, such as a prefix that is computed ahead of requests. It
takes what a step has left, and nothing while any other sequence waits. Where the free blocks do not suffice
it ends, because what requests or prefixes before it left in the cache is worth more; one that was in use
elsewhere may evict what was used before that, as one least-recently-used order over both caches would.

A paused sequence has a slow reader. It has released everything like a preempted one, and waits again at its
old rank when it is resumed.
"""

import bisect
import sys
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final

import msgspec

from warmfleet_worker.engine.batch import ChunkResult
from warmfleet_worker.engine.capacity import watermark_blocks
from warmfleet_worker.engine.messages import SequenceUpdate
from warmfleet_worker.engine.sequence import IDLE_PRIORITY, Rank, Sequence, SequenceState
from warmfleet_worker.engine.step_plan import PlanDraft, StepBudget, StepPlan
from warmfleet_worker.engine.step_time import StepShape
from warmfleet_worker.kv_cache.block_pool import BlockPool
from warmfleet_worker.kv_cache.block_table import blocks_for
from warmfleet_worker.kv_cache.prefix_cache import NO_HIT, PrefixCache, PrefixHit, shared_blocks

MAX_ADOPTED_BLOCKS: Final = 65_536
"""Cached blocks that the sequences admitted in one step start with; the first one may have more.
Every stream waits while they are pinned: 8 seats on a document of 131,072 tokens take 10 ms."""
_NO_FREE_BLOCKS: Final = "there are not enough free blocks to compute this ahead of requests"
_STEP_FAILED: Final = "the engine failed while it computed this request"
_LAST: Final[Rank] = (sys.maxsize, 0)
"""Worse than the rank of every sequence."""


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Bounds of one engine's batches and queue."""

    max_running_sequences: int = 64
    max_batched_tokens: int = 0
    """Tokens per step. 0 = what a step computes in its target time as measured; then decodes are never
    limited, and prefill always gets at least 32 tokens beside them."""
    max_model_length_tokens: int = 4096
    """Prompt and output together."""
    prefix_caching: bool = True
    max_waiting_sequences: int = 4096
    """The engine's own bound; the server refuses earlier (429)."""

    def __post_init__(self) -> None:
        if self.max_running_sequences < 1 or self.max_waiting_sequences < 1:
            raise ValueError("an engine needs at least one seat to run and one to wait")
        if self.max_batched_tokens < 0 or self.max_model_length_tokens < 2:
            raise ValueError("a token budget is 0 (auto) or more, a context at least two tokens")


class Scheduler:
    """Continuous batching over one block pool; the engine owns the one instance.

    scheduler.add(sequence)
    plan = scheduler.schedule(FixedBudget(tokens=512))
    updates = scheduler.apply(plan, outcomes)  # one outcome per chunk of `plan.batch`
    """

    def __init__(self, pool: BlockPool, cache: PrefixCache, settings: SchedulerSettings) -> None:
        self._pool = pool
        self._cache = cache
        self._settings = settings
        self._block_size_tokens = cache.block_size_tokens
        self._watermark_blocks = watermark_blocks(pool.total_blocks)
        self._waiting: list[Sequence] = []  # by rank
        self._running: list[Sequence] = []  # by admission
        self._sequences: dict[int, Sequence] = {}

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._waiting)

    @property
    def paused_sequences(self) -> int:
        return len(self._sequences) - len(self._running) - len(self._waiting)

    @property
    def requests_waiting(self) -> int:
        """Sequences that a client waits for and that do not run."""
        idle_last = bisect.bisect_left(self._waiting, (IDLE_PRIORITY, 0), key=_rank)
        return idle_last + self.paused_sequences

    @property
    def has_work(self) -> bool:
        """Whether any sequence is running or waiting; paused ones do not count."""
        return bool(self._running or self._waiting)

    def __contains__(self, sequence_id: int) -> bool:
        return sequence_id in self._sequences

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence that fits the pool and the context."""
        assert sequence.sequence_id not in self._sequences
        self._sequences[sequence.sequence_id] = sequence
        self._enqueue(sequence)

    def abort(self, sequence_id: int) -> SequenceUpdate | None:
        """End a sequence and free its blocks now; None for an unknown or finished one."""
        sequence = self._sequences.get(sequence_id)
        return None if sequence is None else self._finish(sequence, "abort")

    def pause(self, sequence_id: int) -> None:
        """Take seat and blocks from a sequence until `resume`. Unknown and paused ones are ignored."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None and sequence.state is not SequenceState.PAUSED:
            self._withdraw(sequence)
            sequence.state = SequenceState.PAUSED

    def resume(self, sequence_id: int) -> None:
        """Queue a paused sequence again. Others are ignored."""
        sequence = self._sequences.get(sequence_id)
        if sequence is not None and sequence.state is SequenceState.PAUSED:
            self._enqueue(sequence)

    def schedule(self, budget: StepBudget) -> StepPlan:
        """Choose the next step's chunks and give them blocks. Empty only if there is nothing to compute."""
        seats = self._seats
        self._withdraw_idle()
        self._inherit_ranks(seats - len(self._running))
        best_first = sorted(self._running, key=_effective_rank)
        planned, preempted_sequences = self._plan_decodes(best_first)
        shape = StepShape.of_decodes([sequence.computed_tokens for sequence in planned])
        draft = PlanDraft(planned, shape, budget, seats)
        for sequence in best_first:
            if sequence.state is SequenceState.RUNNING and sequence not in planned:
                self._admit(draft, ahead_of=sequence.effective_rank)
                draft.plan(sequence)
        # A preempted sequence needs more blocks than it released: only a better one can be admitted now.
        self._admit(draft)
        return StepPlan(planned, self._block_size_tokens, preempted_sequences, tuple(draft.admissions))

    def apply(self, plan: StepPlan, outcomes: Seq[ChunkResult | None]) -> list[SequenceUpdate]:
        """Take the outcome of a step: commit what is full and finite, append tokens, end sequences.

        None is a chunk that could not be computed: its sequence ends, and what the step wrote for it is
        never matched. The outcome of a sequence that was aborted or paused since is dropped.
        """
        return [
            update
            for (sequence, tokens), outcome in zip(plan.planned.items(), outcomes, strict=True)
            if sequence.state is SequenceState.RUNNING
            and (update := self._apply_chunk(sequence, tokens, outcome)) is not None
        ]

    # Planning.

    def _withdraw_idle(self) -> None:
        """Take seats and blocks from idle sequences while another waits; what is computed stays cached."""
        if not self._waiting or self._waiting[0].is_idle:
            return
        for sequence in [running for running in self._running if running.is_idle]:
            self._withdraw(sequence)
            self._enqueue(sequence)

    def _inherit_ranks(self, free_seats: int) -> None:
        """Let each leader inherit the best rank among its followers."""
        for sequence in self._running:
            sequence.inherited_rank = None
        if not self._cache.led_blocks:
            return
        # Only as many as could start: the others wait for a seat as well.
        for follower in self._waiting[: max(free_seats, 0)]:
            self._update_match(follower)
            leader = self._leader(follower)
            # In rank order, so the first follower of a leader is its best.
            if leader is not None and leader.inherited_rank is None:
                leader.inherited_rank = follower.rank

    def _plan_decodes(self, best_first: Seq[Sequence]) -> tuple[dict[Sequence, int], int]:
        planned: dict[Sequence, int] = {}
        preempted_sequences = 0
        for sequence in best_first:
            if sequence.state is not SequenceState.RUNNING:
                continue
            is_decoding = sequence.is_decoding
            missing = self._blocks(sequence.token_ids.length) - len(sequence.table)
            if not is_decoding and missing <= 0:
                continue  # a prefill, which has its blocks
            while missing > self._pool.available_blocks:
                # Never a planned one: their ranks are better.
                victim = max(self._running, key=_effective_rank)
                self._withdraw(victim)
                self._enqueue(victim)
                preempted_sequences += 1
                if victim is sequence:
                    break
            if sequence.state is SequenceState.RUNNING:
                if missing > 0:
                    sequence.table.extend(self._pool.allocate(missing))
                if is_decoding:
                    planned[sequence] = 1
        return planned, preempted_sequences

    @property
    def _seats(self) -> int:
        """Under a fixed budget every running sequence must find its one token in it."""
        settings = self._settings
        return min(settings.max_running_sequences, settings.max_batched_tokens or sys.maxsize)

    def _admit(self, draft: PlanDraft, ahead_of: Rank = _LAST) -> None:
        """Start waiting sequences of better rank than `ahead_of`, and plan their first chunks."""
        if not draft.has_room(first_position=0):
            return
        reserved_blocks = 0
        place = 0
        while (
            place < len(self._waiting)
            and len(self._running) + place < draft.seats
            and self._waiting[place].rank < ahead_of
        ):
            sequence = self._waiting[place]
            self._update_match(sequence)
            leader = self._leader(sequence)
            if leader is not None and leader in draft.planned:
                reserved_blocks += self._unled_blocks(sequence, leader)
                place += 1  # its seat stays reserved
                continue
            if not draft.has_room_for(sequence, sequence.token_ids.length - sequence.uncached_tokens):
                return
            if draft.adopted_blocks and draft.adopted_blocks + sequence.matched_blocks > MAX_ADOPTED_BLOCKS:
                return
            if sequence.is_idle and not self._has_unused_blocks_for(sequence):
                draft.admissions.append(self._finish(sequence, "error", _NO_FREE_BLOCKS))
                continue
            if not self._start(sequence, reserved_blocks):
                return  # no sequence of worse rank may take the blocks that this one waits for
            draft.adopted_blocks += sequence.table.committed_blocks
            draft.plan(sequence)
            if not sequence.admitted:
                sequence.admitted = True
                draft.admissions.append(self._admission(sequence))

    def _leader(self, sequence: Sequence) -> Sequence | None:
        """The sequence that computes the next block that `sequence` could reuse.

        A follower is passed over only while its leader is part of the very step being planned: each step
        of the wait computes some of the awaited block, the wait ends with the leader's prefill at the latest,
        and a leader that ended, failed or was preempted has no followers.
        """
        usable_tokens = (sequence.matched_blocks + 1) * self._block_size_tokens
        if not sequence.reads_cache or usable_tokens >= sequence.token_ids.length:
            return None  # the last token is computed anyway, and its block with it
        leader = self._cache.leader_of(sequence.block_hashes[sequence.matched_blocks])
        return None if leader is None else self._sequences[leader]

    def _unled_blocks(self, follower: Sequence, leader: Sequence) -> int:
        """Blocks that a follower has to allocate once its leaders are done."""
        hashes = follower.block_hashes
        awaited = follower.matched_blocks
        next_leader: int | None = leader.sequence_id
        while next_leader is not None:
            awaited = shared_blocks(hashes, self._sequences[next_leader].block_hashes, awaited)
            next_leader = self._cache.leader_of(hashes[awaited]) if awaited < len(hashes) else None
        return self._blocks(follower.token_ids.length) - awaited

    def _unmatched_blocks(self, sequence: Sequence) -> int:
        """Blocks that a waiting sequence has to allocate, as of the last match."""
        return self._blocks(sequence.token_ids.length) - sequence.matched_blocks

    def _has_unused_blocks_for(self, sequence: Sequence) -> bool:
        """Whether an idle sequence can start without a block that is worth more than its own."""
        missing = self._unmatched_blocks(sequence)
        if missing <= self._pool.free_blocks:
            return True
        kept = self._match(sequence).blocks
        return self._pool.has_unused(missing, sequence.evicts_unused_since, kept)

    def _start(self, sequence: Sequence, reserved_blocks: int) -> bool:
        """Give a waiting sequence its blocks and a seat, if there are enough besides the reserved ones."""
        hit = self._match(sequence)
        # All blocks of the known tokens at once: a prefill that has begun never waits for blocks.
        missing = self._blocks(sequence.token_ids.length) - len(hit.blocks)
        taken_blocks = missing + hit.evictable_blocks
        kept_free = self._watermark_blocks if self._running else 0
        if taken_blocks + kept_free + reserved_blocks > self._pool.available_blocks:
            return False
        self._pool.pin(hit.blocks)
        sequence.table.adopt(hit.blocks)
        sequence.table.extend(self._pool.allocate(missing))
        sequence.taken_blocks = taken_blocks
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
        return self._cache.match(sequence.block_hashes, sequence.token_ids.length)

    def _update_match(self, sequence: Sequence) -> None:
        """Match a waiting sequence again; costs nothing for what matched already."""
        if sequence.reads_cache:
            tokens = sequence.token_ids.length
            sequence.matched_blocks = self._cache.matched_blocks(
                sequence.block_hashes, tokens, sequence.matched_blocks
            )
        else:
            sequence.matched_blocks = 0
        sequence.uncached_tokens = (
            sequence.token_ids.length - sequence.matched_blocks * self._block_size_tokens
        )

    def _admission(self, sequence: Sequence) -> SequenceUpdate:
        full_blocks = sequence.prompt_tokens // self._block_size_tokens
        return SequenceUpdate(
            sequence_id=sequence.sequence_id,
            cached_tokens=sequence.computed_tokens,
            last_block=sequence.block_hashes[full_blocks - 1] if full_blocks else b"",
        )

    # Outcomes.

    def _apply_chunk(
        self, sequence: Sequence, tokens: int, outcome: ChunkResult | None
    ) -> SequenceUpdate | None:
        if outcome is None:
            return self._finish(sequence, "error", _STEP_FAILED)
        if not outcome.finite:
            return self._finish(sequence, "error", "the model produced a value that is not finite")
        sequence.computed_tokens += tokens
        if sequence.uses_cache:
            self._commit_full_blocks(sequence)
        if outcome.prompt_logprobs is not None:
            sequence.scored_tokens += outcome.prompt_logprobs.tokens
        reason = "" if sequence.wants_token or sequence.uncomputed_tokens else "length"
        token_ids: list[int] = []
        for token_id in outcome.token_ids:
            sequence.append(token_id)
            token_ids.append(token_id)
            if reason := sequence.finish_reason():
                break  # what was sampled after an end is not part of the answer
        update = SequenceUpdate(
            sequence_id=sequence.sequence_id,
            token_ids=token_ids,
            logprobs=outcome.logprobs and outcome.logprobs.first(len(token_ids)),
            prompt_logprobs=outcome.prompt_logprobs,
        )
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
        self._extend_hashes(sequence, sequence.computed_tokens)
        hashes = sequence.block_hashes
        parent = hashes[first - 1] if first else sequence.root
        for block_hash in hashes[first:full_blocks]:
            table.commit_next(self._pool.commit(table.next_uncommitted, block_hash, parent))
            parent = block_hash
        self._cache.stop_leading(sequence.sequence_id, hashes[first:full_blocks])

    def _extend_hashes(self, sequence: Sequence, tokens: int) -> None:
        """Hash the full blocks of a sequence's first `tokens`."""
        if len(sequence.block_hashes) < tokens // self._block_size_tokens:
            known = sequence.token_ids[:tokens]
            self._cache.extend_hashes(sequence.own_block_hashes(), sequence.root, known)

    # Leaving and queueing.

    def _withdraw(self, sequence: Sequence) -> None:
        """Remove a sequence from its queue, release its blocks, and stop leading."""
        if sequence.state is SequenceState.RUNNING:
            self._running.remove(sequence)
            uncommitted = sequence.block_hashes[sequence.table.committed_blocks :]
            self._cache.stop_leading(sequence.sequence_id, uncommitted)
        elif sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        self._pool.release(sequence.table.take_all())
        sequence.computed_tokens = 0

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        if sequence.uses_cache:
            # All but its last token may be cached; of several that a step brought none is hashed yet.
            self._extend_hashes(sequence, sequence.token_ids.length - 1)
        self._update_match(sequence)
        bisect.insort(self._waiting, sequence, key=_rank)

    def _finish(self, sequence: Sequence, reason: str, error: str = "") -> SequenceUpdate:
        self._withdraw(sequence)
        sequence.state = SequenceState.FINISHED
        del self._sequences[sequence.sequence_id]
        return SequenceUpdate(sequence_id=sequence.sequence_id, finish_reason=reason, error=error)

    def _blocks(self, tokens: int) -> int:
        return blocks_for(tokens, self._block_size_tokens)


def _rank(sequence: Sequence) -> Rank:
    return sequence.rank


def _effective_rank(sequence: Sequence) -> Rank:
    return sequence.effective_rank
