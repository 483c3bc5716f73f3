"""The engine without its model: `step` is schedule, execute, apply, report.

One thread owns it. No request and no failing step ends it: what goes wrong is told to the sequences that
it concerns.
"""

from collections import OrderedDict
from collections.abc import Sequence as Seq
from typing import Final, Protocol

import structlog

from warmfleet_contracts.blocks import CacheIdentity, prefix_caching_supported
from warmfleet_contracts.kv_events import LoadReport
from warmfleet_contracts.openai import MAX_TOP_LOGPROBS
from warmfleet_worker.batch import StepBatch, StepResult
from warmfleet_worker.engine_messages import AddSequence, SequenceUpdate, StepReport
from warmfleet_worker.kv_cache.block_pool import BlockPool
from warmfleet_worker.kv_cache.block_table import blocks_for
from warmfleet_worker.kv_cache.prefix_cache import PrefixCache
from warmfleet_worker.logprobs import joined
from warmfleet_worker.scheduler import Scheduler, SchedulerSettings, StepPlan
from warmfleet_worker.sequence import Sequence
from warmfleet_worker.step_time import StepShape, StepTimeEstimator

__all__ = ["EngineCore", "Runner", "SchedulerSettings"]

MAX_ROUTERS: Final = 64
"""Routers whose dispatch counters are remembered; the one that was silent longest is forgotten first."""
_LARGEST_TOKEN_ID: Final = 2**32 - 1
_STEP_FAILED: Final = "the engine failed while it computed this request"

_log = structlog.get_logger(__name__)


class Runner(Protocol):
    """What the engine needs of the model."""

    @property
    def total_blocks(self) -> int: ...
    def execute(self, batch: StepBatch) -> StepResult: ...
    def poison_blocks(self, block_ids: Seq[int], /) -> None: ...


class EngineCore:
    """Block pool, prefix cache, scheduler and runner as one thing that takes sequences and steps."""

    def __init__(  # noqa: PLR0917 - the six are what an engine is made of; the options are by name
        self,
        runner: Runner,
        identity: CacheIdentity,
        epoch: str,
        block_size_tokens: int,
        window_tokens: int,
        settings: SchedulerSettings,
        *,
        vocabulary_size: int = _LARGEST_TOKEN_ID + 1,
        poison: bool = False,
    ) -> None:
        """Take over the runner's whole arena.

        `vocabulary_size` refuses token ids that the model has no embedding for. `poison` overwrites the
        content of freed blocks (tests).
        """
        self.epoch = epoch
        self.prefix_caching = settings.prefix_caching and prefix_caching_supported(window_tokens)
        """False for a sliding-window model, whatever the settings say."""
        self._runner = runner
        self._settings = settings
        self._vocabulary_size = vocabulary_size
        self._block_size_tokens = block_size_tokens
        self._pool = BlockPool(runner.total_blocks, poison=runner.poison_blocks if poison else None)
        self._cache = PrefixCache(self._pool, identity, block_size_tokens)
        self._scheduler = Scheduler(self._pool, self._cache, settings)
        self._step_time = StepTimeEstimator()
        self._pool_tokens = runner.total_blocks * block_size_tokens
        self._pending: list[SequenceUpdate] = []
        self._admitted_dispatches: OrderedDict[str, int] = OrderedDict()
        self._arrivals = 0
        self._seq = 0
        self._reported_evictions = 0
        self._draining = False

    @property
    def max_model_length_tokens(self) -> int:
        """Most tokens, prompt and output together, that one sequence can have here.

        The context, or the whole pool where that is smaller. Who grows to it ends with "length".
        """
        return min(self._settings.max_model_length_tokens, self._pool_tokens)

    @property
    def max_batched_tokens(self) -> int:
        """Token budget of the next step."""
        return self._settings.max_batched_tokens or self._step_time.auto_batched_tokens()

    @property
    def has_work(self) -> bool:
        """Whether a step would do or tell anything."""
        return self._scheduler.has_work or bool(self._pending) or self._pool.has_changes

    def add(self, message: AddSequence) -> None:
        """Queue a sequence. One that can never run gets an error update in the next report."""
        self._count_dispatch(message)
        if message.sequence_id in self._scheduler:
            _log.warning("sequence id reused, ignored", sequence_id=message.sequence_id)
            return
        refusal = self._refusal(message) or _logprobs_refusal(message)
        if refusal:
            self._pending.append(
                SequenceUpdate(sequence_id=message.sequence_id, finish_reason="error", error=refusal)
            )
            return
        root = self._cache.root(message.salt)
        sequence = Sequence(
            sequence_id=message.sequence_id,
            token_ids=list(message.prompt_token_ids),
            sampling=message.sampling,
            limit_tokens=self.max_model_length_tokens,
            root=root,
            block_hashes=[],
            uses_cache=self.prefix_caching and message.use_prefix_cache,
            arrival=self._arrivals,
            prompt_tokens=len(message.prompt_token_ids),
            may_read_cache=message.may_read_cache,
        )
        # Also without the cache: the router compares the last one with its own.
        self._cache.extend_hashes(sequence.block_hashes, root, sequence.token_ids)
        self._arrivals += 1
        self._scheduler.add(sequence)

    def abort(self, sequence_id: int) -> None:
        """End a sequence and free its blocks at once. Unknown ids are ignored."""
        update = self._scheduler.abort(sequence_id)
        if update is not None:
            self._pending.append(update)

    def clear_cache(self) -> None:
        """Forget every block that no live sequence holds."""
        self._pool.clear()

    def drain(self) -> None:
        """Report `draining` from now on; live and late sequences are served."""
        self._draining = True

    def step(self) -> StepReport:
        """Compute one step for whatever fits, and report all news since the last step."""
        plan = self._scheduler.schedule(self.max_batched_tokens)
        step_seconds = 0.0
        outcomes: list[SequenceUpdate] = []
        if plan.sequences:
            step_seconds, outcomes = self._execute(plan)
        updates = _merged([*self._pending, *plan.admissions, *outcomes])
        self._pending.clear()
        changes = self._pool.take_changes()
        self._seq += bool(changes)
        evicted_blocks = self._pool.evicted_blocks - self._reported_evictions
        self._reported_evictions = self._pool.evicted_blocks
        return StepReport(
            updates=updates,
            seq=self._seq,
            cleared=changes.cleared,
            stored=list(changes.stored),
            removed=list(changes.removed),
            load=self._load(),
            scheduled_tokens=plan.batch.scheduled_tokens,
            step_seconds=step_seconds,
            preempted_sequences=plan.preempted_sequences,
            evicted_blocks=evicted_blocks,
        )

    def report(self) -> StepReport:
        """Load alone; updates and cache news stay for the next step."""
        return StepReport(seq=self._seq, load=self._load())

    def _execute(self, plan: StepPlan) -> tuple[float, list[SequenceUpdate]]:
        try:
            result = self._runner.execute(plan.batch)
            _check_answers(plan, result)
        except Exception:  # noqa: BLE001 - whatever it was, the sequences outside this step go on
            _log.exception("step failed", sequences=len(plan.sequences))
            return 0.0, self._scheduler.fail(plan, _STEP_FAILED)
        self._step_time.observe(StepShape.of(plan.batch), result.seconds)
        return result.seconds, self._scheduler.apply(plan, result)

    def _refusal(self, message: AddSequence) -> str:
        """Why a sequence can never run, or ""."""
        prompt_tokens = len(message.prompt_token_ids)
        if not prompt_tokens:
            return "the prompt has no tokens"
        for what, token_ids in (("prompt", message.prompt_token_ids), ("bias", message.sampling.logit_bias)):
            if token_ids and (min(token_ids) < 0 or max(token_ids) >= self._vocabulary_size):
                return f"a {what} token id lies outside the vocabulary of {self._vocabulary_size}"
        needed_tokens = prompt_tokens + min(message.sampling.max_output_tokens, 1)
        context_tokens = self._settings.max_model_length_tokens
        if needed_tokens > context_tokens:
            return (
                f"maximum context length is {context_tokens} tokens, "
                f"the prompt has {prompt_tokens} and leaves no room for an answer"
            )
        if needed_tokens > self._pool_tokens:
            needed_blocks = blocks_for(needed_tokens, self._block_size_tokens)
            return (
                f"the request needs {needed_blocks} KV blocks ({needed_tokens} tokens), "
                f"the whole cache has {self._pool.total_blocks} ({self._pool_tokens} tokens)"
            )
        if len(self._scheduler.waiting) >= self._settings.max_waiting_sequences:
            return f"{self._settings.max_waiting_sequences} sequences are waiting already"
        return ""

    def _count_dispatch(self, message: AddSequence) -> None:
        if not message.router_id:
            return
        highest = self._admitted_dispatches.get(message.router_id, 0)
        self._admitted_dispatches[message.router_id] = max(highest, message.dispatch)
        self._admitted_dispatches.move_to_end(message.router_id)
        if len(self._admitted_dispatches) > MAX_ROUTERS:
            self._admitted_dispatches.popitem(last=False)

    def _load(self) -> LoadReport:
        running, waiting = self._scheduler.running, self._scheduler.waiting
        queued_tokens = sum(sequence.uncached_tokens for sequence in waiting)
        context_tokens = 0
        for sequence in running:
            context_tokens += sequence.computed_tokens
            uncomputed_tokens = sequence.uncomputed_tokens
            if uncomputed_tokens > 1:
                queued_tokens += uncomputed_tokens
        return LoadReport(
            running_sequences=len(running),
            waiting_sequences=len(waiting),
            max_running_sequences=self._settings.max_running_sequences,
            queued_uncached_tokens=queued_tokens,
            context_tokens=context_tokens,
            total_blocks=self._pool.total_blocks,
            pinned_blocks=self._pool.pinned_blocks,
            cached_blocks=self._pool.evictable_blocks,
            step_time=self._step_time.fit(),
            admitted_dispatches=dict(self._admitted_dispatches),
            draining=self._draining,
        )


def _logprobs_refusal(message: AddSequence) -> str:
    for top in (message.sampling.logprobs, message.sampling.prompt_logprobs):
        if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
            return f"expected log probabilities of 0 to {MAX_TOP_LOGPROBS} tokens, got {top}"
    if message.sampling.prompt_logprobs is not None and message.may_read_cache:
        return "the log probabilities of a prompt cannot come from the cache"
    return ""


def _check_answers(plan: StepPlan, result: StepResult) -> None:
    """The runner answers for every chunk, in order: anything else is its bug, found before it spreads."""
    if len(result.chunks) != len(plan.batch.chunks):
        raise ValueError(f"{len(result.chunks)} results for {len(plan.batch.chunks)} chunks")
    for chunk, answer in zip(plan.batch.chunks, result.chunks, strict=True):
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


def _merged(updates: Seq[SequenceUpdate]) -> list[SequenceUpdate]:
    """One update per sequence: an admission and its outcome in the same step are one message."""
    by_sequence: dict[int, SequenceUpdate] = {}
    for update in updates:
        first = by_sequence.get(update.sequence_id)
        if first is None:
            by_sequence[update.sequence_id] = update
            continue
        by_sequence[update.sequence_id] = SequenceUpdate(
            sequence_id=update.sequence_id,
            cached_tokens=first.cached_tokens,
            last_block=first.last_block,
            token_ids=[*first.token_ids, *update.token_ids],
            logprobs=joined(first.logprobs, update.logprobs),
            prompt_logprobs=joined(first.prompt_logprobs, update.prompt_logprobs),
            finish_reason=first.finish_reason or update.finish_reason,
            error=first.error or update.error,
        )
    return list(by_sequence.values())
