"""python -m shares.engine_alone MODEL: an engine without its server answers prompts from standard input.

A line of JSON has `prompts` (lists of token ids), `output_tokens`, `temperature` and `top_p`. All prompts are
answered at once, greedily at temperature 0, and a line of JSON has what that took (`Answered`). Before the
first one stands a line with `engine`: its kernels and dtype.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from shares.setups import WARMFLEET
from warmfleet_worker.engine.batch import SampleRequest, StepBatch, StepInFlight, StepResult
from warmfleet_worker.engine.engine import Engine
from warmfleet_worker.engine.messages import AddSequences, NewSequence, packed_tokens
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine_process import build_engine


@dataclass(frozen=True, slots=True)
class Answered:
    """Seconds of a round."""

    wall: float
    decode_steps: float
    """Of those after the last prompt."""
    model: float
    """Of these, what the model took, its sampler included."""
    cache: float
    """Of these, in the block pool and the prefix cache, hashing included."""
    sampler: float
    """Of one decode step: what tokens that are drawn as asked take more than the likeliest ones."""


CHOICES: Final = 40
"""Timed of each kind: memory's speed changes from step to step by more than a sampler takes."""


class Stopwatch:
    """Adds up the time in some methods; of those that call one another, the outer one's."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_inside = False

    def watch(self, target: object) -> None:
        """Every public method of an object."""
        for name in dir(type(target)):
            if not name.startswith("_") and callable(getattr(type(target), name)):
                setattr(target, name, self.timed(getattr(target, name)))

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            if self._is_inside:
                return method(*arguments, **options)
            self._is_inside, started = True, time.perf_counter()
            try:
                return method(*arguments, **options)
            finally:
                self.seconds += time.perf_counter() - started
                self._is_inside = False

        return watched


class WatchedStep:
    """A step whose seconds, as the runner reports them, are added up."""

    def __init__(self, step: StepInFlight, add: Callable[[float], None]) -> None:
        self._step = step
        self._add = add

    def finish(self) -> StepResult:
        result = self._step.finish()
        self._add(result.seconds)
        return result


class AloneEngine:
    """An engine as a worker has it, driven by this thread."""

    def __init__(self, model: str) -> None:
        self._engine, self.ready, _ = build_engine(WARMFLEET.settings(model), "00" * 32)
        self._cache = Stopwatch()
        self._cache.watch(self._engine._pool)  # noqa: SLF001 - a look inside is what this is for
        self._cache.watch(self._engine._cache)  # noqa: SLF001
        self._model_seconds = 0.0
        self._watch_runner(self._engine)
        self._next_id = 1

    def answer(self, work: dict[str, Any]) -> Answered:
        """Compute the answers to all prompts."""
        count = work["output_tokens"]
        for prompt in work["prompts"]:
            sampling = SamplingParameters(
                max_output_tokens=count, temperature=work["temperature"], top_p=work["top_p"]
            )
            sequences = [NewSequence(self._next_id, seed=self._next_id)]
            self._next_id += 1
            self._engine.add(
                AddSequences(sequences=sequences, prompt=packed_tokens(prompt), sampling=sampling)
            )
        started = time.perf_counter()
        while self._computes_a_prompt(len(work["prompts"])):
            self._engine.step()
        decodes = time.perf_counter()
        self._cache.seconds = self._model_seconds = 0.0
        while self._engine.has_work:
            self._engine.step()
        ended = time.perf_counter()
        sampler = 0.0
        if work["temperature"]:
            sampler = self._sampler_seconds(len(work["prompts"]), work["temperature"], work["top_p"])
        return Answered(ended - started, ended - decodes, self._model_seconds, self._cache.seconds, sampler)

    def _sampler_seconds(self, rows: int, temperature: float, top_p: float) -> float:
        """Of logits of a normal distribution, as random weights have them: few tokens stand out."""
        model = self._engine._runner.step_model  # type: ignore[attr-defined]  # noqa: SLF001
        drawn = np.random.default_rng(1).standard_normal((rows, model.config.vocab_size), np.float32)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for output_index in range(CHOICES):
            for draws, taken in seconds.items():
                parameters = [
                    SamplingParameters(temperature=temperature if draws else 0.0, top_p=top_p, seed=row)
                    for row in range(rows)
                ]
                requests = [SampleRequest(one, output_index, None) for one in parameters]
                started = time.perf_counter()
                model.choose(drawn, requests)
                taken.append(time.perf_counter() - started)
        return statistics.median(seconds[True]) - statistics.median(seconds[False])

    def _computes_a_prompt(self, count: int) -> bool:
        running = self._engine._scheduler.running  # noqa: SLF001
        return len(running) < count or not all(sequence.is_decoding for sequence in running)

    def _watch_runner(self, engine: Engine) -> None:
        begin = engine._runner.begin  # noqa: SLF001

        def add(seconds: float) -> None:
            self._model_seconds += seconds

        def watched(batch: StepBatch) -> StepInFlight:
            return WatchedStep(begin(batch), add)

        engine._runner.begin = watched  # type: ignore[method-assign]  # noqa: SLF001


def main() -> int:
    engine = AloneEngine(sys.argv[1])
    print(json.dumps({"engine": {"kernels": engine.ready.kernels, "dtype": engine.ready.dtype}}), flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(engine.answer(json.loads(line)))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
