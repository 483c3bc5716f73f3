"""Recomputes a sample of prefix-cache hits, and compares the blocks' bytes with the cached ones.

A verification is one idle sequence behind all others: it computes the tokens of a hit into blocks of its
own, and neither reads nor fills the cache. After each step the blocks that the step completed are compared,
so that no step compares more than it has computed. An exact runner writes the same bytes again, however the
cached block was computed: by one prefill, by chunks, by decodes, alone or beside other sequences. So a
difference is a defect of the memory, or a bug.

A block that differs is dropped from the cache with all that was computed from it. Sequences that hold one
of them are preempted, so that what they compute next is computed from the tokens alone.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from warmfleet_contracts.cache.blocks import BlockHash
from warmfleet_worker.engine.batch import ChunkResult
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.scheduler import Scheduler
from warmfleet_worker.engine.sequence import IDLE_PRIORITY, SequenceState
from warmfleet_worker.engine.sequence import Sequence as EngineSequence
from warmfleet_worker.engine.sequence_tokens import SequenceTokens
from warmfleet_worker.engine.step_plan import StepPlan
from warmfleet_worker.kv_cache.block_pool import BlockPool

VERIFICATION_ID: Final = -1
"""Of the verifying sequence; the server's begin at 0."""
MAX_VERIFIED_TOKENS: Final = 4096
"""Of one hit, from its beginning."""
POOL_PARTS: Final = 16
"""A verification takes at most one part in so many of the pool."""
_PRIORITY: Final = IDLE_PRIORITY + 1
"""Behind prefixes that are computed ahead of requests."""

_log = structlog.get_logger(__name__)


class VerifiedBlocks(NamedTuple):
    """Cached blocks that were compared since the last step."""

    compared: int = 0
    mismatched: int = 0


class HitVerifier:
    """Verifies every `one_in`-th hit, one at a time; a hit that comes while one is verified is passed over.

    verifier.compare(plan, results)  # after the step is computed, before its outcome is applied
    updates = scheduler.apply(plan, results)
    verifier.settle(plan)  # after it
    """

    def __init__(
        self,
        scheduler: Scheduler,
        pool: BlockPool,
        block_bytes: Callable[[int], bytes],
        *,
        block_size_tokens: int,
        one_in: int,
    ) -> None:
        """`block_bytes` gives the keys and values of the block with this id."""
        assert one_in > 0, one_in
        self._scheduler = scheduler
        self._pool = pool
        self._block_bytes = block_bytes
        self._block_size_tokens = block_size_tokens
        self._one_in = one_in
        self._hits = 0
        self._sequence: EngineSequence | None = None
        self._compared_blocks = 0
        self._mismatched: BlockHash | None = None

    def compare(self, plan: StepPlan, results: Sequence[ChunkResult | None]) -> VerifiedBlocks:
        """Compare the blocks that the step completed with those that the cache has now."""
        sequence = self._sequence
        if sequence is None or sequence.state is not SequenceState.RUNNING or sequence not in plan.sequences:
            return VerifiedBlocks()
        place = plan.sequences.index(sequence)
        result = results[place]
        if result is None or not result.finite:
            return VerifiedBlocks()
        computed_tokens = sequence.computed_tokens + len(plan.batch.chunks[place].token_ids)
        compared = 0
        # Not from the step's first block: a verification that was preempted has compared it before.
        for index in range(self._compared_blocks, computed_tokens // self._block_size_tokens):
            self._compared_blocks = index + 1
            cached = self._pool.find(sequence.block_hashes[index])
            if cached is None:
                continue  # evicted since
            compared += 1
            own = sequence.table.blocks[index]
            if self._block_bytes(own.block_id) != self._block_bytes(cached.block_id):
                self._mismatched = sequence.block_hashes[index]
                _log.error(
                    "a cached block differs from its recomputation",
                    block_hash=self._mismatched.hex(),
                    block_id=cached.block_id,
                    first_position=index * self._block_size_tokens,
                )
                return VerifiedBlocks(compared, 1)  # what follows was computed from this one
        return VerifiedBlocks(compared)

    def settle(self, plan: StepPlan) -> None:
        """Drop what differed, and begin to verify a hit of the step if it is due."""
        if self._mismatched is not None:
            self._scheduler.abort(VERIFICATION_ID)
            self._drop(self._mismatched)
            self._mismatched = None
        if self._sequence is not None and self._sequence.state is SequenceState.FINISHED:
            self._sequence = None
        for admission in plan.admissions:
            if admission.cached_tokens:
                self._on_hit(plan, admission.sequence_id, admission.cached_tokens)

    def _on_hit(self, plan: StepPlan, sequence_id: int, cached_tokens: int) -> None:
        self._hits += 1
        if self._hits < self._one_in or self._sequence is not None:
            return
        self._hits = 0
        (hit,) = (sequence for sequence in plan.sequences if sequence.sequence_id == sequence_id)
        limit_blocks = max(self._pool.total_blocks // POOL_PARTS, 1)
        tokens = min(cached_tokens, MAX_VERIFIED_TOKENS, limit_blocks * self._block_size_tokens)
        self._sequence = EngineSequence(
            sequence_id=VERIFICATION_ID,
            token_ids=SequenceTokens(hit.token_ids[:tokens]),
            sampling=SamplingParameters(temperature=0.0, max_output_tokens=0),
            limit_tokens=tokens,
            root=hit.root,
            block_hashes=hit.block_hashes[: tokens // self._block_size_tokens],
            uses_cache=False,
            arrival=0,
            prompt_tokens=tokens,
            priority=_PRIORITY,
            # A cache that has worked for a while has no free block; the oldest content is worth least.
            evicts_unused_since=self._pool.clock(),
        )
        self._compared_blocks = 0
        self._scheduler.add(self._sequence)

    def _drop(self, block_hash: BlockHash) -> None:
        """Make a block and those computed from it unmatchable."""
        blocks = self._pool.with_descendants(block_hash)
        for sequence in self._scheduler.running:
            if not set(blocks).isdisjoint(sequence.table.blocks):
                self._scheduler.pause(sequence.sequence_id)
                self._scheduler.resume(sequence.sequence_id)
        self._pool.drop(blocks)
