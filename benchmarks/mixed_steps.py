"""What does a step take that computes prompts, alone, behind a cached context, and beside decodes?

The engine's runner, without engine, server and router, on the GPU where there is one. A step is written as
its parts: `512` is a prompt of so many tokens, `8*64` eight of them, `512@8192` one behind a context that is
cached, `64x1024` 64 decodes at a context of so many tokens, and `512+64x1024` a prompt beside them. Each kind
of step is computed again and again over the same blocks, which are filled before. A step of several parts is
compared with these in steps of their own, measured in turns with it: batching pays while it takes less.

    PYTHONPATH=benchmarks python benchmarks/mixed_steps.py --random-weights smollm2-135m
"""

import argparse
import asyncio
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from harness.report import Report, machine_line

from warmfleet_cli.bench.engine.cases import BLOCK_SIZE_TOKENS
from warmfleet_cli.bench.engine.model import RandomShape, engine_model
from warmfleet_cli.bench.engine.own_runner import GREEDY, fill, runner_with_blocks, some_tokens
from warmfleet_cli.bench.figures import Target
from warmfleet_worker.engine.batch import Chunk, StepBatch
from warmfleet_worker.kv_cache.block_table import blocks_for
from warmfleet_worker.runner.runner import ModelRunner

STEPS: Final = "512,2048,512@4096,16@4096,512+8x1024,512+64x1024,8*64+64x1024,256+4x4096,64x1024"
FIRST_STEPS: Final = 2
"""Of each kind, which are not counted."""
_DECODES: Final = re.compile(r"(?P<sequences>\d+)x(?P<context>\d+)")
_PROMPTS: Final = re.compile(r"((?P<sequences>\d+)\*)?(?P<tokens>\d+)(@(?P<context>\d+))?")
MOST_OF_PARTS: Final = 1.05
"""Medians of the same steps differ by as much."""


@dataclass(frozen=True, slots=True)
class Part:
    """So many sequences that each get `tokens` tokens computed behind `context_tokens`."""

    sequences: int
    tokens: int
    context_tokens: int

    @staticmethod
    def parsed(text: str) -> "Part":
        """`8*64@1024` or `64x1024`.

        Raises:
            ValueError: it is neither.
        """
        if decodes := _DECODES.fullmatch(text):
            part = Part(int(decodes["sequences"]), 1, int(decodes["context"]))
        elif prompts := _PROMPTS.fullmatch(text):
            part = Part(int(prompts["sequences"] or 1), int(prompts["tokens"]), int(prompts["context"] or 0))
        else:
            raise ValueError(f"{text!r} is neither a prompt as 8*64@1024 nor decodes as 64x1024")
        if part.sequences < 1 or part.tokens < 1:
            raise ValueError(f"{text!r}: counts are at least 1")
        return part

    @property
    def blocks(self) -> int:
        return self.sequences * blocks_for(self.context_tokens + self.tokens, BLOCK_SIZE_TOKENS)


@dataclass(frozen=True, slots=True)
class Step:
    """A kind of step."""

    name: str
    parts: tuple[Part, ...]

    @staticmethod
    def parsed(text: str) -> "Step":
        """Parts with `+` between them.

        Raises:
            ValueError: one of them cannot be read.
        """
        return Step(text, tuple(Part.parsed(part) for part in text.split("+")))

    @property
    def blocks(self) -> int:
        return sum(part.blocks for part in self.parts)

    def longest_tokens(self) -> int:
        return max(part.context_tokens + part.tokens for part in self.parts)


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds of steps of one kind."""

    name: str
    median_ms: float
    least_ms: float
    parts_ms: float | None
    """Of its parts in steps of their own; None where it has one."""

    def line(self) -> str:
        line = f"{self.name:<22}{self.median_ms:10.2f}{self.least_ms:10.2f}"
        if self.parts_ms is None:
            return line
        return f"{line}{self.parts_ms:10.2f}{self.median_ms / self.parts_ms:14.2f}"


class Bench:
    """A runner, and what it computes again and again."""

    def __init__(self, runner: ModelRunner, vocabulary: int, steps_of_each: int) -> None:
        self._runner, self._vocabulary, self._steps_of_each = runner, vocabulary, steps_of_each

    def measured(self, step: Step) -> Measured:
        """Fill its contexts, and compute it and its parts in turns."""
        chunks = tuple(self.chunks(step))
        kinds = [chunks]
        if len(step.parts) > 1:
            first = 0
            for part in step.parts:
                kinds.append(chunks[first : first + part.sequences])
                first += part.sequences
        milliseconds: list[list[float]] = [[] for _ in kinds]
        for number in range(FIRST_STEPS + self._steps_of_each):
            for kind, of_kind in zip(kinds, milliseconds, strict=True):
                started = time.perf_counter()
                self._runner.execute(StepBatch(kind))
                if number >= FIRST_STEPS:
                    of_kind.append((time.perf_counter() - started) * 1e3)
        medians = [statistics.median(of_kind) for of_kind in milliseconds]
        return Measured(
            step.name, medians[0], min(milliseconds[0]), sum(medians[1:]) if len(kinds) > 1 else None
        )

    def chunks(self, step: Step) -> Iterator[Chunk]:
        """Of a step, in the order of its parts, behind contexts that are filled."""
        next_block = sequence = 0
        for part in step.parts:
            for _ in range(part.sequences):
                blocks = range(next_block, next_block + part.blocks // part.sequences)
                next_block = blocks.stop
                fill(
                    self._runner,
                    self._vocabulary,
                    blocks[: blocks_for(part.context_tokens, BLOCK_SIZE_TOKENS)],
                )
                tokens = some_tokens(part.tokens, self._vocabulary)
                yield Chunk(sequence, tokens, part.context_tokens, tuple(blocks), GREEDY)
                sequence += 1


def targets_of(measured: Sequence[Measured]) -> list[Target]:
    """No step takes longer than its parts, but for noise."""
    return [
        Target(f"{one.name}: of its parts", one.median_ms / one.parts_ms, MOST_OF_PARTS, at_least=False)
        for one in measured
        if one.parts_ms is not None
    ]


async def run(options: argparse.Namespace, steps: Sequence[Step], report: Report) -> int:
    """Measure each kind of step."""
    async with engine_model(
        options.model, options.model_path, options.random_weights, needs_gguf=False
    ) as model:
        longest = model.config.max_position
        fitting = [step for step in steps if step.longest_tokens() <= longest]
        left_out = [
            f"{step.name}: the model's limit is {longest:,} tokens" for step in steps if step not in fitting
        ]
        if not fitting:
            print("\n".join(left_out), file=sys.stderr)
            return 2
        runner = runner_with_blocks(
            model.folder,
            max(step.blocks for step in fitting),
            dtype=options.dtype,
            cpu_kernels=options.cpu_kernels,
        )
        bench = Bench(runner, model.config.vocab_size, options.steps)
        print(f"{model.name}, {runner.kernels}, {runner.dtype_name}")
        print(f"{'step':<22}{'median ms':>10}{'least':>10}{'its parts':>10}{'of its parts':>14}")
        measured = []
        for step in fitting:
            measured.append(bench.measured(step))
            print(measured[-1].line(), flush=True)
    return report.end(
        "\n".join(left_out),
        targets_of(measured),
        kernels=runner.kernels,
        dtype=runner.dtype_name,
        steps=[asdict(one) for one in measured],
    )


def _count(text: str) -> int:
    if (count := int(text)) < 1:
        raise ValueError
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="of the catalog; pull it first")
    parser.add_argument("--model-path", type=Path, help="instead: a model folder")
    parser.add_argument("--random-weights", type=RandomShape, choices=list(RandomShape), help="instead")
    parser.add_argument("--kinds", default=STEPS, help="of steps, with commas between them")
    parser.add_argument("--steps", type=_count, default=10, help="of each kind")
    parser.add_argument("--dtype", default="Auto")
    parser.add_argument("--cpu-kernels", default="Auto")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/mixed-steps"))
    options = parser.parse_args()
    try:
        steps = [Step.parsed(text) for text in options.kinds.split(",")]
    except ValueError as error:
        parser.error(f"--kinds: {error}")
    return asyncio.run(run(options, steps, Report.begin(options, machine_line())))


if __name__ == "__main__":
    sys.exit(main())
