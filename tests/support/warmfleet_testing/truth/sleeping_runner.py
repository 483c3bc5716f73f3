"""A runner that computes nothing: each step sleeps for as long as the simulator's step times give it.

    python -m warmfleet_testing.truth.sleeping_worker ...   # a worker whose engine has one

The product carries no switch for this: the two entry modules put the runner in. All else of such a worker is
as it ships: server, tokenizer, scheduler, KV cache, event stream.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from warmfleet_simulator.step_times import PICOSECONDS, StepTimes
from warmfleet_worker.engine.batch import Chunk, ChunkResult, StepBatch, StepResult
from warmfleet_worker.engine.step_time import StepShape
from warmfleet_worker.runner.runner import ModelRunner
from warmfleet_worker.runner.runner_settings import RunnerSettings

STEP_TIMES_VARIABLE: Final = "WARMFLEET_TESTING_STEP_TIMES"
"""Environment variable with `StepTimes` as JSON."""


class SleepingRunner:
    """The `ModelRunner` that it wraps gives the model's shape and the size of the KV cache.

    The seed of a request is the id of each token of its answer.
    """

    def __init__(self, runner: ModelRunner, times: StepTimes) -> None:
        self._runner = runner
        self._times = times

    @property
    def bits(self) -> str:
        """Of no kernel: the hashes of blocks, by which routers break ties, are those of every such worker."""
        return ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def begin(self, batch: StepBatch) -> "SleepingStep":
        return SleepingStep(batch, self._times.step_ps(StepShape.of(batch)) / PICOSECONDS)


class SleepingStep:
    """A step that ends so many seconds after its beginning."""

    def __init__(self, batch: StepBatch, seconds: float) -> None:
        self._batch = batch
        self._seconds = seconds
        self._started = time.monotonic()

    def finish(self) -> StepResult:
        results = tuple(map(_result, self._batch.chunks))
        time.sleep(max(self._started + self._seconds - time.monotonic(), 0))
        return StepResult(results, time.monotonic() - self._started)


def sleeping(
    load: Callable[[Path, RunnerSettings], ModelRunner], times: str
) -> Callable[..., SleepingRunner]:
    """The loader, with a runner around what it loads that takes `times`, which are JSON."""
    step_times = msgspec.json.decode(times, type=StepTimes)

    def load_sleeping(model_path: Path, settings: RunnerSettings) -> SleepingRunner:
        return SleepingRunner(load(model_path, settings), step_times)

    return load_sleeping


def _result(chunk: Chunk) -> ChunkResult:
    token_ids = () if chunk.sample is None else (chunk.sample.parameters.seed,)
    return ChunkResult(chunk.sequence_id, finite=True, token_ids=token_ids)
