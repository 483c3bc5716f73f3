"""Drives a `ModelRunner` without a scheduler: shuffled block tables, hand-made chunks, and counters."""

import random
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from warmfleet_worker.engine.batch import Chunk, SampleRequest, StepBatch
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.runner.runner import ModelRunner, load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings

GREEDY = SamplingParameters(temperature=0.0)
DEVICES: Final[tuple[Any, ...]] = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))
"""Values of a parameter `device`: parity suites run on the CPU, and with `pytest -m gpu` on a GPU."""


def load_runner_on(device: str, folder: Path, settings: RunnerSettings) -> ModelRunner:
    """A runner that computes on `device`, also where the machine has another; on a GPU by its kernels."""
    with patch("warmfleet_worker.runner.runner.has_gpu", lambda: device == "cuda"):
        runner = load_runner(folder, settings)
    if device == "cuda":
        # They have none for float64. Else PyTorch would be tested in their place.
        assert runner.kernels == ("torch" if settings.dtype == "Float64" else "triton")
    return runner


@dataclass
class DrivenSequence:
    """Known tokens, and how many of them have their KV in the arena."""

    sequence_id: int
    token_ids: list[int]
    prompt_tokens: int
    sampling: SamplingParameters = GREEDY
    computed_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)

    @property
    def output_ids(self) -> list[int]:
        return self.token_ids[self.prompt_tokens :]


class RunnerDriver:
    """Hands out shuffled blocks and counts what was really executed."""

    def __init__(self, runner: ModelRunner, *, block_size_tokens: int = 16, seed: int = 0) -> None:
        self.runner = runner
        self.block_size_tokens = block_size_tokens
        self.free_blocks = list(range(runner.total_blocks))
        random.Random(seed).shuffle(self.free_blocks)
        self.executed_steps = 0
        self.executed_chunks = 0
        self.computed_tokens = 0
        self.largest_batch_chunks = 0
        self.mixed_steps = 0
        self._next_id = 0

    def sequence(self, prompt: Sequence[int], sampling: SamplingParameters = GREEDY) -> DrivenSequence:
        self._next_id += 1
        return DrivenSequence(self._next_id, list(prompt), len(prompt), sampling)

    def step(self, work: Iterable[tuple[DrivenSequence, int]]) -> None:
        """One step: each sequence computes so many tokens; one that reaches its last token samples."""
        chunks = []
        sequences = []
        for sequence, tokens in work:
            end = sequence.computed_tokens + tokens
            assert tokens > 0
            assert end <= len(sequence.token_ids)
            while len(sequence.block_ids) * self.block_size_tokens < end:
                sequence.block_ids.append(self.free_blocks.pop())
            complete = end == len(sequence.token_ids)
            sample = SampleRequest(sequence.sampling, end - sequence.prompt_tokens) if complete else None
            chunks.append(
                Chunk(
                    sequence_id=sequence.sequence_id,
                    token_ids=sequence.token_ids[sequence.computed_tokens : end],
                    first_position=sequence.computed_tokens,
                    block_ids=tuple(sequence.block_ids),
                    sample=sample,
                )
            )
            sequences.append(sequence)
        batch = StepBatch(tuple(chunks))
        result = self.runner.execute(batch)
        self._count(batch)
        for sequence, chunk, outcome in zip(sequences, chunks, result.chunks, strict=True):
            assert outcome.sequence_id == sequence.sequence_id
            assert outcome.finite
            assert bool(outcome.token_ids) == (chunk.sample is not None)
            sequence.computed_tokens += len(chunk.token_ids)
            sequence.token_ids.extend(outcome.token_ids)

    def release(self, sequence: DrivenSequence) -> None:
        """Give the blocks back, poisoned, and forget the KV."""
        self.runner.poison_blocks(sequence.block_ids)
        # To the far end: the next sequence gets other blocks.
        self.free_blocks[:0] = sequence.block_ids
        sequence.block_ids.clear()
        sequence.computed_tokens = 0

    def generate(
        self, prompt: Sequence[int], tokens: int, *, prompt_chunks_tokens: Sequence[int] = ()
    ) -> list[int]:
        """Prefill in the given chunks (default: at once), then decode one by one."""
        sequence = self.sequence(prompt)
        for chunk_tokens in prompt_chunks_tokens or (len(prompt),):
            self.step([(sequence, chunk_tokens)])
        while len(sequence.output_ids) < tokens:
            self.step([(sequence, 1)])
        self.release(sequence)
        return sequence.output_ids

    def _count(self, batch: StepBatch) -> None:
        lengths = [len(chunk.token_ids) for chunk in batch.chunks]
        self.executed_steps += 1
        self.executed_chunks += len(lengths)
        self.computed_tokens += sum(lengths)
        self.largest_batch_chunks = max(self.largest_batch_chunks, len(lengths))
        self.mixed_steps += min(lengths) == 1 and max(lengths) > 1


class AllocatedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch leaves it untyped
    """Records what is allocated inside the `with`: of torch the largest memory that any operation allocated
    for a tensor, of numpy and Python the most that was held at a time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.largest_tensor_bytes = 0
        self.most_array_bytes = 0

    def __enter__(self) -> Self:
        tracemalloc.start()
        super().__enter__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call] # torch leaves it untyped
        self.most_array_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        before = {_memory(tensor) for tensor in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            if _memory(tensor) not in before:
                size_bytes = tensor.untyped_storage().nbytes()
                self.largest_tensor_bytes = max(self.largest_tensor_bytes, size_bytes)
        return result


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(value: object) -> Iterable[Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
