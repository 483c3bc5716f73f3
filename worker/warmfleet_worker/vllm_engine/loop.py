"""Connects the server's messages, vLLM and its cache events, in one event loop. Knows vLLM by `outputs`."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from warmfleet_contracts.cache.blocks import (
    BlockHash,
    CacheIdentity,
    block_hashes,
    block_root,
    cacheable_tokens,
)
from warmfleet_contracts.cache.kv_events import IDLE_HEARTBEAT_SECONDS
from warmfleet_contracts.errors import WarmfleetError
from warmfleet_worker.engine.admitted_dispatches import Dispatch
from warmfleet_worker.engine.messages import (
    AbortSequence,
    AddSequences,
    ClearCache,
    Drain,
    EngineMetrics,
    NewSequence,
    PauseSequence,
    ReadMetrics,
    ResumeSequence,
    ServerMessage,
    StepReport,
    unpacked_tokens,
)
from warmfleet_worker.engine.sequence import IDLE_PRIORITY
from warmfleet_worker.engine.validation import EngineLimits, validation_error
from warmfleet_worker.vllm_engine.announcements import Announcements
from warmfleet_worker.vllm_engine.kv_events import decode_batch
from warmfleet_worker.vllm_engine.load import LoadTracker, StepStatistics
from warmfleet_worker.vllm_engine.outputs import (
    BusyError,
    EventSource,
    Llm,
    ModelFacts,
    Output,
    RefusedRequestError,
    VllmDiedError,
)
from warmfleet_worker.vllm_engine.refusals import clear_cache, scores_misfit
from warmfleet_worker.vllm_engine.reports import Reports, metrics_report, sequence_update
from warmfleet_worker.vllm_engine.resident import EventsLostError, ResidentBlocks, UnfitCacheError, salt_text
from warmfleet_worker.vllm_engine.sampling import sampling_arguments, wants_tokens
from warmfleet_worker.vllm_engine.sequences import LiveSequence, LiveSequences
from warmfleet_worker.vllm_engine.shared_prefixes import Prefill, SharedPrefixes

CHECK_SECONDS: Final = 0.5
"""Interval at which vLLM's processes are checked."""
FIRST_EVENT_SECONDS: Final = 10.0
"""Time for the event of a computed block to arrive."""
WARM_UP_PROMPTS: Final = 3
"""Prompts computed at the start until an event has arrived."""
MAX_LIVE_SEQUENCES: Final = 4096
"""Waiting and running; the server's own bound is lower."""

log = structlog.get_logger("warmfleet.worker.vllm")


class NoEventsError(VllmDiedError):
    """vLLM caches prefixes and sends no events of them."""


class EngineLoop:
    """One vLLM engine: takes the server's messages, sends reports.

    loop = EngineLoop(llm, facts, identity, send=send, prefix_caching=True)
    await loop.run(events, converse())  # which calls `warm_up`, `begin_reports`, and `apply` for each message
    """

    def __init__(
        self,
        llm: Llm,
        facts: ModelFacts,
        identity: CacheIdentity,
        *,
        send: Callable[[StepReport | EngineMetrics], None],
        check: Callable[[], None] = lambda: None,
        prefix_caching: bool,
    ) -> None:
        """`check` is called twice a second, and ends the loop with what it raises."""
        self._llm = llm
        self._facts = facts
        self._identity = identity
        self._send = send
        self._check = check
        self._prefix_caching = prefix_caching
        self._limits = EngineLimits(
            facts.max_model_length_tokens,
            facts.total_blocks,
            facts.block_size_tokens,
            facts.vocabulary_size,
        )
        self._resident = ResidentBlocks(identity, facts.block_size_tokens, facts.total_blocks)
        self._announcements = Announcements(facts.steps_ahead)
        self._load = LoadTracker(
            seats=facts.max_running_sequences,
            total_blocks=facts.total_blocks,
            block_size_tokens=facts.block_size_tokens,
            fixed_batched_tokens=facts.max_batched_tokens,
        )
        self._sequences = LiveSequences()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._prefixes = SharedPrefixes()
        self._prefills: dict[int, Prefill] = {}
        self._reports = Reports(facts.max_batched_tokens)
        self._clearing: set[asyncio.Task[None]] = set()
        self._arrivals = 0
        self._reporting = False
        self._report_due = False
        self._has_events = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, events: EventSource, work: Coroutine[Any, Any, None]) -> None:
        """Follow vLLM, and its events if it caches prefixes, until `work` ends, or vLLM fails.

        Raises:
            VllmDiedError: one of vLLM's processes has ended.
            UnfitCacheError: it caches in a form that cannot be predicted.
            ContractError: it sends events of another form.
        """
        parts = {asyncio.create_task(part) for part in (work, self._follow_steps(), self._beat())}
        if self._prefix_caching:
            parts.add(asyncio.create_task(self._follow(events)))
        try:
            done, _ = await asyncio.wait({*parts, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
        finally:
            running = {*parts, *self._tasks.values(), *self._clearing}
            for task in (*running, self._failure):
                task.cancel()
            # Of several failures the first one is reported.
            await asyncio.gather(*running, self._failure, return_exceptions=True)

    def begin_reports(self) -> None:
        """Send reports from now on: the server knows this engine."""
        self._reporting = True
        self._schedule_report()

    async def warm_up(self) -> None:
        """Compute a block and see that its event arrives, while `run` runs. Nothing stays cached.

        Raises:
            NoEventsError: it does not.
            VllmDiedError: one of vLLM's processes has ended.
        """
        for token_id in range(WARM_UP_PROMPTS):
            prompt = [token_id] * (self._facts.block_size_tokens + 1)
            arguments = {"max_tokens": 1, "logprobs": 1, "detokenize": False, "ignore_eos": True}
            async for _ in self._llm.generate(f"warm-up-{token_id}", prompt, None, arguments, 0):
                pass
            if not self._prefix_caching:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_EVENT_SECONDS):
                    await self._has_events.wait()
                self._start_clear()
                return
        raise NoEventsError(
            "vLLM caches prefixes and sends no events of them: routers could not know its cache"
        )

    def apply(self, message: ServerMessage) -> None:
        """Take one message of the server."""
        match message:
            case AddSequences():
                self._add(message)
            case AbortSequence(sequence_id=sequence_id):
                task = self._tasks.get(sequence_id)
                if task is not None:
                    self._forget(sequence_id)
                    task.cancel()
            case PauseSequence() | ResumeSequence():
                pass  # vLLM has no pause: the server's bound on unread tokens ends the sequence
            case ClearCache():
                self._start_clear()
            case Drain():
                self._load.drain()
            case ReadMetrics():
                self._send(metrics_report(self._llm.metrics))
        self._schedule_report()

    def _add(self, message: AddSequences) -> None:
        self._load.dispatches.count(message.router_id, message.dispatch)
        prompt = unpacked_tokens(message.prompt)
        never = validation_error(message, prompt, self._limits)
        if message.sampling.prompt_logprobs is not None:
            never = never or scores_misfit(len(prompt), self._facts)
        refusal = never or self._refusal_now(message)
        if refusal:
            for new in message.sequences:
                if new.sequence_id not in self._tasks:
                    self._reports.add_end(new.sequence_id, "refused" if never else "busy", refusal)
            return
        # Also without the cache: the router compares the last one with its own.
        root = block_root(self._identity, salt=message.salt)
        hashes = block_hashes(root, prompt, self._facts.block_size_tokens)
        for new in message.sequences:
            if new.sequence_id in self._tasks:
                log.warning("sequence id reused, ignored", sequence_id=new.sequence_id)
                continue
            self._start(message, new, prompt, hashes)

    def _refusal_now(self, message: AddSequences) -> str:
        """Why the sequences are not taken now, or ""."""
        if message.is_idle and not self._prefix_caching:
            return "nothing is cached here, so nothing is computed ahead of requests"
        if len(self._sequences) + len(message.sequences) > MAX_LIVE_SEQUENCES:
            return f"{len(self._sequences)} sequences are live already"
        return ""

    def _start(
        self, message: AddSequences, new: NewSequence, prompt: Sequence[int], hashes: Sequence[BlockHash]
    ) -> None:
        size = self._facts.block_size_tokens
        priority = IDLE_PRIORITY if message.is_idle else message.priority
        resident = shared = 0
        if message.may_read_cache and self._prefix_caching:
            cacheable = hashes[: cacheable_tokens(len(prompt), size) // size]
            resident = self._resident.matched_tokens(cacheable) // size
            shared = self._prefixes.computing(cacheable[resident:], priority)
        sequence = LiveSequence(
            sequence_id=new.sequence_id,
            prompt_tokens=len(prompt),
            expected_cached_tokens=(resident + shared) * size,
            last_block=hashes[-1] if hashes else b"",
            priority=priority,
            arrival=self._arrivals,
            dispatch=Dispatch(message.router_id, message.dispatch),
            is_idle=message.is_idle,
            wants_tokens=wants_tokens(message.sampling),
            logprobs=message.sampling.logprobs,
            prompt_logprobs=message.sampling.prompt_logprobs,
        )
        self._arrivals += 1
        self._sequences.by_id[new.sequence_id] = sequence
        if self._prefix_caching:
            self._prefills[new.sequence_id] = self._prefixes.begin(hashes[resident:], priority)
        awaited = hashes[resident + shared - 1] if shared else None
        task = asyncio.create_task(self._generate(sequence, message, new.seed, prompt, awaited))
        self._tasks[new.sequence_id] = task

    async def _generate(
        self,
        sequence: LiveSequence,
        message: AddSequences,
        seed: int,
        prompt: Sequence[int],
        awaited: BlockHash | None,
    ) -> None:
        if awaited is not None:
            await self._prefixes.wait_for(awaited)
        stream = self._llm.generate(
            str(sequence.sequence_id),
            prompt,
            salt_text(message.salt),
            sampling_arguments(message, seed, self._facts.vocabulary_size),
            sequence.priority,
        )
        try:
            async with contextlib.aclosing(stream):
                async for output in stream:
                    self._on_output(sequence, output, prompt)
        except RefusedRequestError as error:
            # After its first token it is no more the request's own fault.
            self._end(sequence, "refused" if sequence.is_prefilling else "error", error)
        except BusyError as error:
            self._end(sequence, "busy", error)
        except Exception as error:  # noqa: BLE001 - the server reports the reason of any failure
            self._fail(error)

    def _end(self, sequence: LiveSequence, finish_reason: str, error: WarmfleetError) -> None:
        if self._forget(sequence.sequence_id):
            log.warning("vLLM ended a sequence", reason=str(error), cause=repr(error.__cause__))
            self._reports.add_failure()
            self._reports.add_end(sequence.sequence_id, finish_reason, str(error))
            self._schedule_report()

    def _on_output(self, sequence: LiveSequence, output: Output, prompt: Sequence[int]) -> None:
        # The step that computed it comes first: its tokens are attributed by what was computed before it.
        while not self._llm.steps.empty():
            self._on_step(self._llm.steps.get_nowait())
        if sequence.is_prefilling:
            self._end_prefill(sequence.sequence_id)
        self._reports.add_update(sequence_update(sequence, output, prompt))
        sequence.generated_tokens += len(output.token_ids)
        if output.finish_reason:
            self._forget(sequence.sequence_id)
        if self._reports.is_large:
            self._send_report()
        self._schedule_report()

    def _forget(self, sequence_id: int) -> bool:
        """Whether the sequence was live."""
        self._end_prefill(sequence_id)
        self._tasks.pop(sequence_id, None)
        return self._sequences.by_id.pop(sequence_id, None) is not None

    def _end_prefill(self, sequence_id: int) -> None:
        prefill = self._prefills.pop(sequence_id, None)
        if prefill is not None:
            self._prefixes.end(prefill)

    def _start_clear(self) -> None:
        """Empty the prefix cache: for routers now, in vLLM before its next step."""
        # Before vLLM is asked: its own event of it may arrive before its answer.
        self._resident.clear()
        task = asyncio.create_task(clear_cache(self._llm))
        self._clearing.add(task)
        task.add_done_callback(self._end_clear)
        self._schedule_report()

    def _end_clear(self, task: asyncio.Task[None]) -> None:
        self._clearing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _follow_steps(self) -> None:
        while True:
            self._on_step(await self._llm.steps.get())

    def _on_step(self, statistics: StepStatistics) -> None:
        self._load.on_step(statistics, self._sequences)
        self._reports.add_step(statistics)
        if statistics.computed_tokens:
            self._announcements.end_step()
        self._apply_events()
        self._schedule_report()

    async def _follow(self, events: EventSource) -> None:
        while True:
            try:
                async for payload in events.batches():
                    self._announcements.add(decode_batch(payload))
                    self._apply_events()
            except EventsLostError as error:
                self._begin_anew(error)

    def _apply_events(self) -> None:
        try:
            for batch in self._announcements.take(is_idle=not self._sequences and self._load.is_idle):
                self._resident.apply(batch)
                self._has_events.set()
        except EventsLostError as error:
            self._begin_anew(error)
        except UnfitCacheError as error:
            self._fail(error)
        if self._resident.changes:
            self._prefixes.settle(self._resident.__contains__)
            self._schedule_report()

    def _begin_anew(self, error: EventsLostError) -> None:
        """Empty the cache on both sides: then what vLLM holds is known again."""
        log.warning("vLLM's cache is cleared: what it holds is not known", reason=str(error))
        self._start_clear()

    async def _beat(self) -> None:
        """Send the load while nothing is computed, and see that vLLM is alive."""
        checks = 0
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._check()
            if self._llm.is_dead:
                raise VllmDiedError("one of vLLM's processes has ended")
            checks += 1
            if checks * CHECK_SECONDS >= IDLE_HEARTBEAT_SECONDS:
                checks = 0
                self._schedule_report()

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _schedule_report(self) -> None:
        """Send a report when all tasks that are ready have run: one for all sequences of a step."""
        if self._reporting and not self._report_due:
            self._report_due = True
            asyncio.get_running_loop().call_soon(self._send_report)

    def _send_report(self) -> None:
        self._report_due = False
        try:
            self._send(self._reports.take(self._resident, self._load, self._sequences))
        except Exception as error:  # noqa: BLE001 - as a callback it would be logged and forgotten
            self._fail(error)
