"""The engine without its model: `begin` is schedule and hand over, `finish` is wait, apply and report.

One thread owns it. No request ends it: a failure ends the sequences that it concerns, with an error. Only a
runner that cannot compute anything any more ends the engine, and a supervisor starts another one.
"""

import math
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import structlog

from warmfleet_contracts.cache.blocks import BlockHash, CacheIdentity, prefix_caching_supported
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_worker.engine.admitted_dispatches import Dispatch
from warmfleet_worker.engine.batch import Chunk, StepBatch, StepInFlight
from warmfleet_worker.engine.hit_verifier import VERIFICATION_ID, HitVerifier
from warmfleet_worker.engine.messages import AddSequences, SequenceUpdate, StepReport, unpacked_tokens
from warmfleet_worker.engine.reporter import NOTHING_VERIFIED, Reporter
from warmfleet_worker.engine.scheduler import Scheduler, SchedulerSettings
from warmfleet_worker.engine.sequence import IDLE_PRIORITY, Sequence
from warmfleet_worker.engine.sequence_tokens import SequenceTokens
from warmfleet_worker.engine.step_plan import FixedBudget, StepBudget, StepPlan
from warmfleet_worker.engine.step_recovery import Computation, StepOutcome
from warmfleet_worker.engine.step_time import TARGET_STEP_SECONDS, StepShape, StepTimeEstimator
from warmfleet_worker.engine.token_counts import TokenCounts
from warmfleet_worker.engine.updates import merged
from warmfleet_worker.engine.validation import EngineLimits, validation_error
from warmfleet_worker.kv_cache.block_pool import BlockPool
from warmfleet_worker.kv_cache.prefix_cache import PrefixCache

_LARGEST_TOKEN_ID: Final = 2**32 - 1
MAX_FAILED_STEPS: Final = 3
"""Consecutive steps of which nothing could be computed, nor a probe after each, before the engine ends."""

_log = structlog.get_logger(__name__)


class Runner(Protocol):
    """What the engine needs of the model; `runner.ModelRunner` in production, fakes in tests."""

    @property
    def total_blocks(self) -> int: ...
    @property
    def exact(self) -> bool:
        """Whether a position's bits depend on its tokens alone, however the steps are cut."""

    def begin(self, batch: StepBatch) -> StepInFlight:
        """Hand a step over and return. One step at a time; an error has begun nothing."""

    def poison_blocks(self, block_ids: Seq[int], /) -> None: ...
    def block_bytes(self, block_id: int, /) -> bytes:
        """Keys and values of a full block, as stored."""


class RunnerBrokenError(WarmfleetError):
    """The runner fails for every input; a new process is needed."""


class HitsNotVerifiable(WarmfleetError):  # noqa: N818 - named after what is wrong
    """Hits are to be verified on a runner whose bits depend on how the steps are cut."""


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step that the runner computes."""

    plan: StepPlan
    computation: Computation


class Engine:
    """Block pool, prefix cache, scheduler and runner together: takes sequences, computes steps.

    Use it from one thread; `engine_process` drives it in production.

        prompt, sampling = packed_tokens([5, 6]), SamplingParameters()
        engine.add(AddSequences(sequences=[NewSequence(1, seed=7)], prompt=prompt, sampling=sampling))
        while engine.has_work:
            report = engine.step()  # new tokens of every sequence, cache changes, load
    """

    def __init__(  # noqa: PLR0917 - an engine has these six parts; the options are by name
        self,
        runner: Runner,
        identity: CacheIdentity,
        epoch: str,
        block_size_tokens: int,
        window_tokens: int,
        settings: SchedulerSettings,
        *,
        target_step_seconds: float = TARGET_STEP_SECONDS,
        vocabulary_size: int = _LARGEST_TOKEN_ID + 1,
        verify_hits_one_in: int = 0,
        poison: bool = False,
        on_step: Callable[[StepShape, float], None] = lambda _shape, _seconds: None,
    ) -> None:
        """Use the runner's whole arena.

        `target_step_seconds` is how long a step takes that computes prompts beside answers.
        Token ids of `vocabulary_size` or more are refused. Every `verify_hits_one_in`-th hit is recomputed
        and compared; 0: none. `poison` overwrites the content of freed blocks (tests).
        `on_step` is called with each step that was computed whole, and its seconds.

        Raises:
            HitsNotVerifiable: hits are to be verified, and `runner` is not exact.
        """
        self.epoch = epoch
        self.prefix_caching = settings.prefix_caching and prefix_caching_supported(window_tokens)
        """Always False for a sliding-window model."""
        self._runner = runner
        self._on_step = on_step
        self._settings = settings
        self._block_size_tokens = block_size_tokens
        self._limits = EngineLimits(
            settings.max_model_length_tokens, runner.total_blocks, block_size_tokens, vocabulary_size
        )
        self._pool = BlockPool(runner.total_blocks, poison=runner.poison_blocks if poison else None)
        self._cache = PrefixCache(self._pool, identity, block_size_tokens)
        self._scheduler = Scheduler(self._pool, self._cache, settings)
        self._verifier = self._hit_verifier(verify_hits_one_in) if verify_hits_one_in else None
        self._step_time = StepTimeEstimator(target_step_seconds)
        fixed_tokens = settings.max_batched_tokens
        self._reporter = Reporter(
            self._pool,
            self._scheduler,
            seats=settings.max_running_sequences,
            fixed_batched_tokens=fixed_tokens,
        )
        self._budget: StepBudget = (
            FixedBudget(fixed_tokens, self._step_time) if fixed_tokens else self._step_time
        )
        self._pending: dict[int, SequenceUpdate] = {}
        self._arrivals = 0
        self._failed_steps = 0

    def _hit_verifier(self, one_in: int) -> HitVerifier:
        if not self._runner.exact:
            raise HitsNotVerifiable(
                "--verify-hits: this engine does not promise equal bits for equal tokens, "
                "so a difference would prove nothing"
            )
        return HitVerifier(
            self._scheduler,
            self._pool,
            self._runner.block_bytes,
            block_size_tokens=self._block_size_tokens,
            one_in=one_in,
        )

    @property
    def max_model_length_tokens(self) -> int:
        """Most tokens, prompt and output together, that one sequence can have here.

        The context, or the whole pool where that is smaller. A sequence that reaches it ends with "length".
        """
        return min(self._settings.max_model_length_tokens, self._limits.pool_tokens)

    @property
    def max_batched_tokens(self) -> int:
        """Most tokens of the next step: as set, or what a new prompt alone gets in the target time."""
        return self._settings.max_batched_tokens or self._step_time.auto_batched_tokens()

    @property
    def has_work(self) -> bool:
        """Whether a step would compute or report anything."""
        return self._scheduler.has_work or bool(self._pending) or self._pool.has_changes

    def add(self, message: AddSequences) -> None:
        """Queue sequences of one prompt. Those that can never run get an error update in the next report."""
        self._reporter.dispatches.count(message.router_id, message.dispatch)
        prompt = unpacked_tokens(message.prompt)
        never = validation_error(message, prompt, self._limits)
        refusal = never or self._refusal_now(message)
        if not refusal:
            self._queue(message, prompt)
            return
        for new in message.sequences:
            if not self._is_in_use(new.sequence_id):
                self._refuse(new.sequence_id, "refused" if never else "busy", refusal)

    def _queue(self, message: AddSequences, prompt: "array[int]") -> None:
        """Queue the sequences of `message`; what costs O(tokens) is done once for all of them."""
        root = self._cache.root(message.salt)
        # Also without the cache: the router compares the last one with its own.
        hashes: list[BlockHash] = []
        self._cache.extend_hashes(hashes, root, prompt)
        counts = TokenCounts(prompt) if message.sampling.has_penalty else None
        matched_blocks = 0
        dispatch = Dispatch(message.router_id, message.dispatch)
        ago = message.unused_seconds
        evicts_unused_since = -math.inf if ago is None else self._pool.clock() - ago
        for new in message.sequences:
            if self._is_in_use(new.sequence_id):
                continue
            if refusal := self._queue_full_error(message):
                self._refuse(new.sequence_id, "busy", refusal)
                continue
            sequence = Sequence(
                sequence_id=new.sequence_id,
                token_ids=SequenceTokens(prompt),
                sampling=msgspec.structs.replace(message.sampling, seed=new.seed),
                limit_tokens=self.max_model_length_tokens,
                root=root,
                block_hashes=hashes,
                shares_block_hashes=True,
                uses_cache=self.prefix_caching and message.use_prefix_cache,
                arrival=self._arrivals,
                prompt_tokens=len(prompt),
                may_read_cache=message.may_read_cache,
                priority=IDLE_PRIORITY if message.is_idle else message.priority,
                dispatch=dispatch,
                token_counts=None if counts is None else counts.copy(),
                matched_blocks=matched_blocks,
                evicts_unused_since=evicts_unused_since,
            )
            self._arrivals += 1
            self._scheduler.add(sequence)
            matched_blocks = sequence.matched_blocks

    def _is_in_use(self, sequence_id: int) -> bool:
        """Whether a new sequence has the id of another one: it is ignored."""
        # Also of one whose end is not reported yet: it would be read as the end of the new one.
        in_use = sequence_id in self._scheduler or sequence_id in self._pending
        if in_use:
            _log.warning("sequence id reused, ignored", sequence_id=sequence_id)
        return in_use

    def _refuse(self, sequence_id: int, reason: str, error: str) -> None:
        self._pending[sequence_id] = SequenceUpdate(
            sequence_id=sequence_id, finish_reason=reason, error=error
        )

    def abort(self, sequence_id: int) -> None:
        """End a sequence and free its blocks at once. Unknown ids are ignored."""
        update = self._scheduler.abort(sequence_id)
        if update is not None:
            self._pending[sequence_id] = update

    def pause(self, sequence_id: int) -> None:
        """Preempt a sequence until `resume`; its blocks stay cached until they are evicted."""
        self._scheduler.pause(sequence_id)

    def resume(self, sequence_id: int) -> None:
        """Queue a paused sequence again; it continues with its next token."""
        self._scheduler.resume(sequence_id)

    def clear_cache(self) -> None:
        """Forget every block without a holder."""
        self._pool.clear()

    def drain(self) -> None:
        """Report `draining` from now on; live and late sequences are served."""
        self._reporter.drain()

    def step(self) -> StepReport:
        """Both halves of a step.

        Raises:
            RunnerBrokenError: `MAX_FAILED_STEPS` steps in a row computed nothing.
        """
        return self.finish(self.begin())

    def begin(self) -> "BegunStep":
        """Schedule one step and have the runner compute it; `finish` is called with it before the next one.

        Meanwhile sequences may be added, aborted, paused and resumed.
        """
        plan = self._scheduler.schedule(self._budget)
        return BegunStep(plan, Computation(self._runner.begin, plan.batch))

    def finish(self, step: "BegunStep") -> StepReport:
        """Wait for the step, and report all changes since the one before.

        Raises:
            RunnerBrokenError: `MAX_FAILED_STEPS` steps in a row computed nothing.
        """
        plan, outcome = step.plan, step.computation.finish()
        self._observe(plan.batch, outcome)
        verified = self._verifier.compare(plan, outcome.chunks) if self._verifier else NOTHING_VERIFIED
        outcomes = self._scheduler.apply(plan, outcome.chunks)
        if self._verifier:
            self._verifier.settle(plan)
        self._check_runner(outcome)
        # The end of a sequence that was aborted since the step began comes after its admission.
        updates = merged([*plan.admissions, *outcomes, *self._pending.values()])
        if self._verifier:
            updates = [update for update in updates if update.sequence_id != VERIFICATION_ID]
        self._pending.clear()
        return self._reporter.step(
            updates,
            self._step_time.fit(),
            scheduled_tokens=plan.batch.scheduled_tokens,
            preempted_sequences=plan.preempted_sequences,
            outcome=outcome,
            verified=verified,
        )

    def report(self) -> StepReport:
        """Load only; updates and cache changes stay for the next step."""
        return self._reporter.load_only(self._step_time.fit())

    def _observe(self, batch: StepBatch, outcome: StepOutcome) -> None:
        """Learn what a step takes from one that was computed whole."""
        if outcome.chunks and not outcome.failures:
            shape = StepShape.of(batch)
            self._step_time.observe(shape, outcome.seconds)
            self._on_step(shape, outcome.seconds)

    def _check_runner(self, outcome: StepOutcome) -> None:
        """Distinguish requests that cannot be computed from a runner that cannot compute.

        Raises:
            RunnerBrokenError: `MAX_FAILED_STEPS` steps in a row computed nothing.
        """
        if outcome.chunks:
            broken = outcome.wholly_failed and not self._probe_runner()
            self._failed_steps = self._failed_steps + 1 if broken else 0
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise RunnerBrokenError(f"{MAX_FAILED_STEPS} steps in a row could not be computed at all")

    def _probe_runner(self) -> bool:
        """Whether the runner computes a probe: one token of no sequence."""
        # There is a free block: sequences have just failed and released theirs.
        blocks = self._pool.allocate(1)
        probe = Chunk(
            sequence_id=-1, token_ids=(0,), first_position=0, block_ids=(blocks[0].block_id,), sample=None
        )
        outcome = Computation(self._runner.begin, StepBatch((probe,))).finish()
        self._pool.release(blocks)
        return not outcome.wholly_failed

    def _refusal_now(self, message: AddSequences) -> str:
        """Why this engine does not take the sequences now, or ""."""
        if message.is_idle and not self.prefix_caching:
            return "nothing is cached here, so nothing is computed ahead of requests"
        return self._queue_full_error(message)

    def _queue_full_error(self, message: AddSequences) -> str:
        """Why the waiting queue takes no sequence, or "". Idle ones take no place from the others."""
        limit, scheduler = self._settings.max_waiting_sequences, self._scheduler
        waiting = scheduler.requests_waiting
        if message.is_idle:
            waiting = len(scheduler.waiting) + scheduler.paused_sequences
        if waiting >= limit:
            return f"{limit} sequences are waiting already"
        return ""
