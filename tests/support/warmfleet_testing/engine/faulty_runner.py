"""A real runner that fails when a request asks for it: the request's seed encodes how, and at which token.

    python -m warmfleet_testing.engine.faulty_worker ...   # a worker whose engine has one

The product carries no switch for this: the two entry modules put the runner in.
"""

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import structlog
import torch

from warmfleet_worker.engine.batch import Chunk, StepBatch, StepInFlight, StepResult
from warmfleet_worker.runner.runner import ModelRunner
from warmfleet_worker.runner.runner_settings import RunnerSettings

_MARK: Final = 0xFA17 << 32
_TOO_MANY_BYTES: Final = 2**50

log = structlog.get_logger("warmfleet.testing.faulty_runner")


class Fault(enum.IntEnum):
    """What happens in every step that computes the culprit's chosen token."""

    RAISES = 1
    NOT_FINITE = 2
    """The KV that the token reads is NaN."""
    OUT_OF_MEMORY = 3
    """An allocation that the device refuses."""
    SHORT_ANSWER = 4
    """The runner answers for one chunk too few."""
    OUT_OF_MEMORY_TOGETHER = 5
    """As `OUT_OF_MEMORY`, but only in a step with others."""


def fault_seed(fault: Fault, output_index: int) -> int:
    """The `seed` of a request that has `fault` instead of its token `output_index`."""
    return _MARK | fault << 16 | output_index


class ShortAnswer:
    """A step that answers for one chunk too few."""

    def __init__(self, step: StepInFlight) -> None:
        self._step = step

    def finish(self) -> StepResult:
        result = self._step.finish()
        return StepResult(result.chunks[:-1], result.seconds)


class FaultyRunner:
    """`ModelRunner` with the faults above; for everything else it is the one that it wraps."""

    def __init__(self, runner: ModelRunner, block_size_tokens: int) -> None:
        self._runner = runner
        self._block_size_tokens = block_size_tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def begin(self, batch: StepBatch) -> StepInFlight:
        for chunk in batch.chunks:
            fault = _due(chunk)
            if fault is not None:
                log.info("fault", kind=fault.name, chunks=len(batch.chunks))
            if fault is Fault.RAISES:
                raise RuntimeError("a kernel failed")
            if fault is Fault.OUT_OF_MEMORY or (
                fault is Fault.OUT_OF_MEMORY_TOGETHER and len(batch.chunks) > 1
            ):
                torch.empty(_TOO_MANY_BYTES, dtype=torch.uint8, device=self._runner.device_name)
            if fault is Fault.NOT_FINITE:
                self._spoil(chunk)
            if fault is Fault.SHORT_ANSWER:
                return ShortAnswer(self._runner.begin(batch))
        return self._runner.begin(batch)

    def _spoil(self, chunk: Chunk) -> None:
        """Fill the block that `chunk` goes on in: no other sequence reads it before it is full."""
        place = chunk.first_position % self._block_size_tokens
        assert place, "the block before is committed, and may be another sequence's, too"
        self._runner.poison_blocks([chunk.block_ids[chunk.first_position // self._block_size_tokens]])


def _due(chunk: Chunk) -> Fault | None:
    """The fault that a chunk asks for now."""
    if chunk.sample is None or chunk.sample.parameters.seed & ~0xFFFFFFFF != _MARK:
        return None
    seed = chunk.sample.parameters.seed
    return Fault(seed >> 16 & 0xFFFF) if chunk.sample.output_index == seed & 0xFFFF else None


def faulty(load: Callable[[Path, RunnerSettings], ModelRunner]) -> Callable[..., FaultyRunner]:
    """The loader, with a runner around what it loads."""

    def load_faulty(model_path: Path, settings: RunnerSettings) -> FaultyRunner:
        return FaultyRunner(load(model_path, settings), settings.block_size_tokens)

    return load_faulty
