"""One replica in virtual time: it steps while it has work, and publishes what changed.

Messages wait for the end of the step that is running, as in the worker's engine process. A stretch of quiet
steps is begun as a whole; a message that arrives during it ends it with the step that is running then.
"""

import asyncio
import bisect
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from warmfleet_contracts.cache.blocks import CacheIdentity
from warmfleet_contracts.cache.kv_events import BUSY_HEARTBEAT_SECONDS
from warmfleet_simulator.replica.answer import Answer
from warmfleet_simulator.replica.engine import EngineStep, SimulatedEngine
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.replica.token_gaps import TokenGaps
from warmfleet_simulator.step_times import PICOSECONDS
from warmfleet_worker.engine.messages import EngineReady, SequenceUpdate
from warmfleet_worker.engine.step_time import StepShape
from warmfleet_worker.server.events import EventHub

LONGEST_STRETCH_PS: Final = round(BUSY_HEARTBEAT_SECONDS * PICOSECONDS)
"""A stretch of skipped steps is no longer, so that the load in a heartbeat is no older."""


class Replica:
    """Answers prompts, one step after the other. Needs a running event loop.

    replica = Replica("replica-0", "epoch-0", identity, settings)
    answer = replica.submit(prompt, output_tokens=40, answer_token=7, router_id="router", dispatch=1)
    cached_tokens = await answer.admitted
    """

    def __init__(
        self,
        uid: str,
        epoch: str,
        identity: CacheIdentity,
        settings: ReplicaSettings,
        *,
        skips_quiet_steps: bool = True,
        on_gap: Callable[[float, int], None] = lambda _seconds, _count: None,
    ) -> None:
        """An idle replica whose engine is ready. Without `skips_quiet_steps` it steps one by one.

        `on_gap(seconds, count)` gets the gaps between tokens.
        """
        self.uid = uid
        self.epoch = epoch
        self.identity = identity
        self.settings = settings
        self.gaps = TokenGaps(on_gap)
        """Between the tokens of its answers."""
        self.steps = 0
        """So far, skipped ones included."""
        self._skips = skips_quiet_steps
        self._loop = asyncio.get_running_loop()
        self._engine = SimulatedEngine(identity, settings)
        self._hub = EventHub()
        self._inbox: list[Answer] = []
        self._answers: dict[int, Answer] = {}
        self._busy = ExitStack()
        self._last_id = 0
        self._at_ps = 0
        """When the last step ended."""
        self._stretch: _Stretch | None = None
        self._is_stepping = False
        self._hub.start(
            EngineReady(
                epoch=epoch,
                identity=identity,
                block_size_tokens=settings.block_size_tokens,
                window_tokens=0,
                total_blocks=settings.total_blocks,
                kv_bytes_per_token=0,
                max_model_length_tokens=settings.capacity_tokens,
                max_batched_tokens=0,
                max_running_sequences=settings.seats,
                dtype="",
                device="",
            )
        )

    @property
    def evicted_blocks(self) -> int:
        """Since its start."""
        return self._engine.evicted_blocks

    @property
    def open_answers(self) -> int:
        """Answers that have not ended."""
        return len(self._answers) + len(self._inbox)

    def submit(
        self,
        prompt: "array[int]",
        *,
        output_tokens: int,
        answer_token: int,
        router_id: str,
        dispatch: int,
    ) -> Answer:
        """Have a prompt answered that leaves room for a token in the KV cache."""
        future = self._loop.create_future
        answer = Answer(
            prompt, output_tokens, answer_token, router_id, dispatch, future(), future(), future()
        )
        if not self.open_answers:
            self._busy.enter_context(self._hub.busy())
        self._inbox.append(answer)
        if not self._is_stepping:
            self._at_ps = max(self._at_ps, self._now_ps())
            self._next()
        elif self._stretch is not None:
            self._cut(self._stretch)
        return answer

    def events(self, epoch: str, after: int) -> AsyncGenerator[bytes, None]:
        """The frames of its event stream, after those that the subscriber has."""
        return self._hub.subscribe(epoch, after)

    def drain(self) -> None:
        """Report that it takes no more prompts; those that arrive nevertheless are answered."""
        self._hub.drain()

    def close(self) -> None:
        """End its event streams."""
        self._hub.close()

    # Steps.

    def _next(self) -> None:
        """Begin a step, at the end of the last one."""
        for answer in self._inbox:
            self._last_id += 1
            self._answers[self._last_id] = answer
            self._engine.add(
                self._last_id,
                answer.prompt,
                output_tokens=answer.output_tokens,
                answer_token=answer.answer_token,
                router_id=answer.router_id,
                dispatch=answer.dispatch,
            )
        self._inbox.clear()
        self._is_stepping = self._engine.has_work
        if self._is_stepping:
            step = self._engine.step()
            self._call_at(self._at_ps + step.picoseconds, lambda: self._finish(step))

    def _finish(self, step: EngineStep) -> None:
        """A step has ended: publish it, and begin the next one or a stretch."""
        self._at_ps += step.picoseconds
        self.steps += 1
        gaps: Counter[int] = Counter()
        for update in step.report.updates:
            self._publish(update, gaps)
        for gap_ps, count in gaps.items():
            self.gaps.add(gap_ps, count)
        self._hub.apply(step.report)
        if not self.open_answers:
            self._busy.close()
        if not (self._skips and step.is_quiet and not self._inbox and self._begin_stretch()):
            self._next()

    def _begin_stretch(self) -> bool:
        """Begin the quiet steps that follow, if there are any."""
        steps = self._engine.quiet_steps()
        if not steps:
            return False
        first = self._engine.next_decodes()
        times = self.settings.step_times
        steps = _steps_within(LONGEST_STRETCH_PS, steps, lambda count: times.decodes_ps(first, count))
        end_ps = self._at_ps + times.decodes_ps(first, steps)
        self._stretch = _Stretch(first, steps, self._call_at(end_ps, self._finish_stretch))
        return True

    def _cut(self, stretch: "_Stretch") -> None:
        """A message arrived: end the stretch with the step that is running now."""
        times, elapsed_ps = self.settings.step_times, self._now_ps() - self._at_ps
        begun = bisect.bisect_left(
            range(1, stretch.steps),
            elapsed_ps,
            key=lambda count: times.decodes_ps(stretch.first, count),
        )
        steps = begun + 1
        if steps < stretch.steps:
            stretch.timer.cancel()
            end_ps = self._at_ps + times.decodes_ps(stretch.first, steps)
            timer = self._call_at(end_ps, self._finish_stretch)
            self._stretch = _Stretch(stretch.first, steps, timer)

    def _finish_stretch(self) -> None:
        stretch, times = self._stretch, self.settings.step_times
        assert stretch is not None
        self._stretch = None
        running_ids = self._engine.running_ids
        report = self._engine.skip(stretch.steps)
        self._at_ps += times.decodes_ps(stretch.first, stretch.steps)
        self.steps += stretch.steps
        self.gaps.add_series(
            times.step_ps(stretch.first),
            times.context_token_ps * len(running_ids),
            stretch.steps,
            len(running_ids),
        )
        for sequence_id in running_ids:
            answer = self._answers[sequence_id]
            answer.generated_tokens += stretch.steps
            answer.last_token_ps = self._at_ps
        self._hub.apply(report)
        self._next()

    def _publish(self, update: SequenceUpdate, gaps: Counter[int]) -> None:
        """Pass on what a step brought to one answer; `gaps` counts the times since its last token."""
        answer = self._answers[update.sequence_id]
        if update.cached_tokens is not None:
            answer.admitted.set_result(update.cached_tokens)
        if update.token_ids:
            if answer.generated_tokens:
                gaps[self._at_ps - answer.last_token_ps] += 1
            else:
                answer.first_token.set_result(None)
            answer.generated_tokens += 1
            answer.last_token_ps = self._at_ps
        if update.finish_reason:
            del self._answers[update.sequence_id]
            answer.ended.set_result(answer.generated_tokens)

    def _now_ps(self) -> int:
        return round(self._loop.time() * PICOSECONDS)

    def _call_at(self, at_ps: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_at(at_ps / PICOSECONDS, callback)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Quiet steps that are under way."""

    first: StepShape
    steps: int
    timer: asyncio.TimerHandle
    """Runs at their end."""


def _steps_within(limit_ps: int, steps: int, picoseconds: Callable[[int], int]) -> int:
    """How many of `steps` fit into `limit_ps`, at least 1."""
    return max(bisect.bisect_right(range(1, steps + 1), limit_ps, key=picoseconds), 1)
