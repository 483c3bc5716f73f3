"""warmfleet's engine as a process that is measured: the runner that `load_runner` gives, by its protocol.

python -m warmfleet_cli.bench.engine.own_program MODEL DTYPE WEIGHT_QUANTIZATION CPU_KERNELS BLOCKS
"""

import sys
from pathlib import Path
from typing import Final

from warmfleet_cli.bench.engine.case_loop import CaseEngine, serve
from warmfleet_cli.bench.engine.cases import BLOCK_SIZE_TOKENS, SPARE_TOKENS, Case
from warmfleet_runtime.version import package_version
from warmfleet_worker.engine.batch import Chunk, SampleRequest, StepBatch
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.kv_cache.layout import KvShape, kv_layout
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.runner.runner import ModelRunner, load_runner, resolve_dtype
from warmfleet_worker.runner.runner_settings import ELEMENT_BYTES, RunnerSettings
from warmfleet_worker.settings import CpuKernels, Dtype, WeightQuantization

PIECE_TOKENS: Final = 512
"""Tokens of one chunk of those that fill a context."""
_GREEDY: Final = SampleRequest(SamplingParameters(temperature=0.0), output_index=0)


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
        config = load_model_config(model)
        element_bytes = ELEMENT_BYTES[resolve_dtype(dtype, config, BLOCK_SIZE_TOKENS, cpu_kernels)]
        shape = KvShape(config.layers, config.kv_heads, config.head_dim, element_bytes)
        kv_bytes = blocks * kv_layout(shape, BLOCK_SIZE_TOKENS).block_stride_bytes
        self._runner: ModelRunner = load_runner(
            model,
            RunnerSettings(
                kv_cache_bytes=kv_bytes,
                block_size_tokens=BLOCK_SIZE_TOKENS,
                dtype=dtype,
                weight_quantization=weight_quantization,
                cpu_kernels=cpu_kernels,
            ),
        )
        weights = "" if weight_quantization == "None" else f", {weight_quantization} weights"
        self.name = f"warmfleet {package_version()} ({self._runner.kernels}{weights})"
        self.dtype = self._runner.dtype_name
        self.blocks = self._runner.total_blocks
        self._vocabulary = self._runner.model.vocab_size
        self._blocks: dict[int, list[int]] = {}
        """Of each sequence, filled but for the spare ones at the end."""
        self._filled: dict[int, int] = {}
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
            tokens, position = tuple(self._tokens(case.context_tokens)), 0
        else:
            tokens, position = (1 + index % (self._vocabulary - 1),), case.context_tokens + index
        blocks = (position + len(tokens) + BLOCK_SIZE_TOKENS - 1) // BLOCK_SIZE_TOKENS
        chunks = tuple(
            Chunk(sequence, tokens, position, tuple(self._blocks[sequence][:blocks]), _GREEDY)
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
        """Compute keys and values up to `tokens`.

        Each piece is computed as if it was a sequence of its own: what a decode reads is as large and as far
        apart in memory, and the time to fill it does not grow with the square of the context.
        """
        filled = self._filled.get(sequence, 0)
        while filled < tokens:
            first = filled // BLOCK_SIZE_TOKENS
            blocks = self._blocks[sequence][first : first + PIECE_TOKENS // BLOCK_SIZE_TOKENS]
            piece = min(PIECE_TOKENS, len(blocks) * BLOCK_SIZE_TOKENS)
            chunk = Chunk(sequence, tuple(self._tokens(piece)), 0, tuple(blocks), None)
            self._runner.execute(StepBatch((chunk,)))
            filled += piece
        self._filled[sequence] = filled

    def _tokens(self, count: int) -> list[int]:
        return [1 + (7 * index) % (self._vocabulary - 1) for index in range(count)]


def main() -> int:
    model, dtype, quantization, kernels, blocks = sys.argv[1:]

    def make() -> CaseEngine:
        # The command has checked the names.
        return OwnEngine(Path(model), dtype, quantization, kernels, int(blocks))  # type: ignore[arg-type]

    return serve(make)


if __name__ == "__main__":
    sys.exit(main())
