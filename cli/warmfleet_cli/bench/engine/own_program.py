"""warmfleet's engine as a process that is measured: the runner that `load_runner` gives, by its protocol.

python -m warmfleet_cli.bench.engine.own_program MODEL DTYPE WEIGHT_QUANTIZATION CPU_KERNELS BLOCKS
"""

import sys
from pathlib import Path
from typing import Final

from warmfleet_cli.bench.engine.case_loop import CaseEngine, serve
from warmfleet_cli.bench.engine.cases import BLOCK_SIZE_TOKENS, SPARE_TOKENS, Case
from warmfleet_cli.bench.engine.own_runner import GREEDY, fill, runner_with_blocks, some_tokens
from warmfleet_runtime.version import package_version
from warmfleet_worker.engine.batch import Chunk, StepBatch
from warmfleet_worker.kv_cache.block_table import blocks_for
from warmfleet_worker.settings import CpuKernels, Dtype, WeightQuantization


class OwnEngine:
    """A runner with so many sequences in its blocks as the largest case has, filled when first needed."""

    variants: Final = ["all cores"]

    def __init__(
        self,
        model: Path,
        dtype: Dtype,
        weight_quantization: WeightQuantization,
        cpu_kernels: CpuKernels,
        blocks: int,
    ) -> None:
        self._runner = runner_with_blocks(
            model, blocks, dtype=dtype, cpu_kernels=cpu_kernels, weight_quantization=weight_quantization
        )
        weights = "" if weight_quantization == "None" else f", {weight_quantization} weights"
        self.name = f"warmfleet {package_version()} ({self._runner.kernels}{weights})"
        self.dtype = self._runner.dtype_name
        self.blocks = self._runner.total_blocks
        self._vocabulary = self._runner.model.vocab_size
        self._blocks: dict[int, list[int]] = {}
        """Of each sequence, filled but for the spare ones at the end."""
        self._filled: dict[int, int] = {}
        """Of them, so many."""
        self._next_block = 0

    def prepare(self, case: Case, _variant: str) -> None:
        """Give every sequence its context of real keys and values, each in memory of its own."""
        for sequence in range(case.batch):
            self._grow(sequence, case.context_tokens + SPARE_TOKENS)
            if case.kind == "decode":
                self._fill(sequence, case.context_tokens)

    def step(self, case: Case, index: int) -> list[int]:
        """One step through the runner."""
        if case.kind == "prefill":
            tokens, position = some_tokens(case.context_tokens, self._vocabulary), 0
        else:
            tokens, position = (1 + index % (self._vocabulary - 1),), case.context_tokens + index
        blocks = blocks_for(position + len(tokens), BLOCK_SIZE_TOKENS)
        chunks = tuple(
            Chunk(sequence, tokens, position, tuple(self._blocks[sequence][:blocks]), GREEDY)
            for sequence in range(case.batch)
        )
        result = self._runner.execute(StepBatch(chunks))
        return [token_id for chunk in result.chunks for token_id in chunk.token_ids]

    def reset(self, case: Case) -> None:
        """Nothing: the next step writes over it, and what a prefill wrote is a context like any other."""

    def _grow(self, sequence: int, tokens: int) -> None:
        blocks = self._blocks.setdefault(sequence, [])
        while len(blocks) * BLOCK_SIZE_TOKENS < tokens:
            if self._next_block >= self._runner.total_blocks:
                raise MemoryError("the KV cache has no room for this case")
            blocks.append(self._next_block)
            self._next_block += 1

    def _fill(self, sequence: int, tokens: int) -> None:
        """Keys and values up to `tokens`, where there are none yet."""
        filled, needed = self._filled.get(sequence, 0), blocks_for(tokens, BLOCK_SIZE_TOKENS)
        fill(self._runner, self._vocabulary, self._blocks[sequence][filled:needed])
        self._filled[sequence] = max(filled, needed)


def main() -> int:
    model, dtype, quantization, kernels, blocks = sys.argv[1:]

    def make() -> CaseEngine:
        # The command has checked the names.
        return OwnEngine(Path(model), dtype, quantization, kernels, int(blocks))  # type: ignore[arg-type]

    return serve(make)


if __name__ == "__main__":
    sys.exit(main())
