"""The worker's engine with a clock instead of a model: production scheduler, block pool and prefix cache.

`step` does what `step` of the worker's `engine.Engine` does, with two differences: no chunk is computed, and
the token budget follows the known step times where a worker estimates its own. `skip` does many steps at
once.

A stretch of **quiet** steps is what `skip` replaces. In a quiet step every running sequence generates one
token and nothing else happens: no sequence starts, ends or is preempted, no block is allocated, filled or
evicted. Such steps follow a step after which no sequence waits and each has a token, and, where sequences
wait, a step that planned decodes alone: what kept those from starting (seats, blocks) does not change. They
go on while no sequence reaches a block edge, its end or the context's limit, and no message arrives. So only
the number of tokens changes, and the time of the stretch has a closed form.
"""

from array import array
from itertools import starmap

import msgspec

from warmfleet_contracts.cache.blocks import BlockHash, CacheIdentity
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.step_times import ModelledBudget
from warmfleet_worker.engine.admitted_dispatches import Dispatch
from warmfleet_worker.engine.batch import ChunkResult
from warmfleet_worker.engine.messages import SequenceUpdate, StepReport
from warmfleet_worker.engine.reporter import Reporter
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.scheduler import Scheduler, SchedulerSettings
from warmfleet_worker.engine.sequence import Sequence
from warmfleet_worker.engine.sequence_tokens import SequenceTokens
from warmfleet_worker.engine.step_plan import StepPlan
from warmfleet_worker.engine.step_time import StepShape
from warmfleet_worker.kv_cache.block_pool import BlockPool
from warmfleet_worker.kv_cache.prefix_cache import PrefixCache


class EngineStep(msgspec.Struct, frozen=True, gc=False):
    """One step, or several that were skipped."""

    report: StepReport
    picoseconds: int
    is_quiet: bool
    """Whether `quiet_steps` may follow."""


class SimulatedEngine:
    """Used by one `Replica`. Sequence ids are never used again.

    engine.add(1, prompt, output_tokens=40, answer_token=7, router_id="r", dispatch=1)
    step = engine.step()
    if step.is_quiet and (steps := engine.quiet_steps()):
        report = engine.skip(steps)
    """

    def __init__(self, identity: CacheIdentity, settings: ReplicaSettings) -> None:
        self.settings = settings
        self._pool = BlockPool(settings.total_blocks)
        self._cache = PrefixCache(self._pool, identity, settings.block_size_tokens)
        self._scheduler = Scheduler(
            self._pool,
            self._cache,
            SchedulerSettings(
                max_running_sequences=settings.seats,
                max_model_length_tokens=max(settings.capacity_tokens, 2),
            ),
        )
        self._reporter = Reporter(self._pool, self._scheduler, seats=settings.seats, fixed_batched_tokens=0)
        self._budget = ModelledBudget(settings.step_times, settings.target_step_milliseconds)
        self._step_time = settings.step_times.fit()
        self._root = self._cache.root(b"")
        self._answer_tokens: dict[int, int] = {}
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def evicted_blocks(self) -> int:
        """Since the start."""
        return self._pool.evicted_blocks

    def add(
        self,
        sequence_id: int,
        prompt: "array[int]",
        *,
        output_tokens: int,
        answer_token: int,
        router_id: str,
        dispatch: int,
    ) -> None:
        """Queue a sequence whose prompt leaves room for one token in the pool."""
        hashes: list[BlockHash] = []
        self._cache.extend_hashes(hashes, self._root, prompt)
        self._arrivals += 1
        self._answer_tokens[sequence_id] = answer_token
        self._reporter.dispatches.count(router_id, dispatch)
        self._scheduler.add(
            Sequence(
                sequence_id=sequence_id,
                token_ids=SequenceTokens(prompt),
                sampling=SamplingParameters(max_output_tokens=output_tokens),
                limit_tokens=self.settings.capacity_tokens,
                root=self._root,
                block_hashes=hashes,
                uses_cache=True,
                arrival=self._arrivals,
                prompt_tokens=len(prompt),
                dispatch=Dispatch(router_id, dispatch),
            )
        )

    def step(self) -> EngineStep:
        """Schedule and apply one step; there is work."""
        plan = self._scheduler.schedule(self._budget)
        assert plan.planned, "a step without a sequence"
        shape = plan.shape
        outcomes = self._scheduler.apply(plan, list(starmap(self._result, plan.planned.items())))
        for update in outcomes:
            if update.finish_reason:
                del self._answer_tokens[update.sequence_id]
        return EngineStep(
            report=self._reporter.step(
                [*plan.admissions, *outcomes],
                self._step_time,
                preempted_sequences=plan.preempted_sequences,
            ),
            picoseconds=self.settings.step_times.step_ps(shape),
            is_quiet=self._is_quiet(plan, shape, outcomes),
        )

    @property
    def running_ids(self) -> list[int]:
        """Ids of the sequences that run."""
        return [sequence.sequence_id for sequence in self._scheduler.running]

    def quiet_steps(self) -> int:
        """How many quiet steps follow a quiet step, if no message arrives."""
        block_size = self.settings.block_size_tokens
        running = self._scheduler.running
        quiet = self.settings.capacity_tokens if running else 0
        for sequence in running:
            tokens = sequence.token_ids.length
            if tokens != sequence.computed_tokens + 1:
                return 0
            quiet = min(
                quiet,
                len(sequence.table) * block_size - tokens + 1,
                (sequence.table.committed_blocks + 1) * block_size - tokens,
                sequence.sampling.max_output_tokens - (tokens - sequence.prompt_tokens) - 1,
                sequence.limit_tokens - tokens - 1,
            )
            if quiet <= 0:
                return 0
        return quiet

    def next_decodes(self) -> StepShape:
        """The shape of the first of the quiet steps that follow."""
        return StepShape.of_decodes([sequence.computed_tokens for sequence in self._scheduler.running])

    def skip(self, steps: int) -> StepReport:
        """Do `steps` of the `quiet_steps` at once; their tokens are in no update."""
        for sequence in self._scheduler.running:
            sequence.extend(array("I", (self._answer_tokens[sequence.sequence_id],)) * steps)
            sequence.computed_tokens += steps
        return self._reporter.step([], self._step_time)

    def _result(self, sequence: Sequence, tokens: int) -> ChunkResult:
        sequence_id = sequence.sequence_id
        token_ids = (self._answer_tokens[sequence_id],) if sequence.samples_after(tokens) else ()
        return ChunkResult(sequence_id, finite=True, token_ids=token_ids)

    def _is_quiet(self, plan: StepPlan, shape: StepShape, outcomes: list[SequenceUpdate]) -> bool:
        ended = sum(bool(update.finish_reason) for update in outcomes)
        if not self._scheduler.waiting:
            # Nothing can start, so all that matters is that each sequence got a token and goes on.
            return len(outcomes) - ended == len(self._scheduler.running)
        return not (shape.prefill_tokens or plan.preempted_sequences or plan.admissions or ended)
