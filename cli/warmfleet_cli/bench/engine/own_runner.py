"""Our engine's runner as benchmarks drive it: with so many blocks, and contexts written into them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from warmfleet_cli.bench.engine.cases import BLOCK_SIZE_TOKENS
from warmfleet_worker.engine.batch import Chunk, SampleRequest, StepBatch
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.kv_cache.layout import KvShape, kv_layout
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.runner.runner import ModelRunner, load_runner, resolve_dtype
from warmfleet_worker.runner.runner_settings import ELEMENT_BYTES, RunnerSettings
from warmfleet_worker.settings import CpuKernels, Dtype, WeightQuantization

GREEDY: Final = SampleRequest(SamplingParameters(temperature=0.0), output_index=0)
PIECE_BLOCKS: Final = 512 // BLOCK_SIZE_TOKENS
"""Of one chunk of those that fill a context."""


def runner_with_blocks(
    model: Path,
    blocks: int,
    *,
    dtype: Dtype,
    cpu_kernels: CpuKernels,
    weight_quantization: WeightQuantization = "None",
) -> ModelRunner:
    """A model's runner whose KV cache has `blocks` blocks, in the dtype that it computes in.

    Raises:
        KernelsNotAvailable: `cpu_kernels` names some that do not run here.
        ModelError: the model cannot be loaded.
    """
    config = load_model_config(model)
    resolved = resolve_dtype(dtype, config, BLOCK_SIZE_TOKENS, cpu_kernels)
    shape = KvShape(config.layers, config.kv_heads, config.head_dim, ELEMENT_BYTES[resolved])
    return load_runner(
        model,
        RunnerSettings(
            kv_cache_bytes=blocks * kv_layout(shape, BLOCK_SIZE_TOKENS).block_stride_bytes,
            block_size_tokens=BLOCK_SIZE_TOKENS,
            dtype=dtype,
            weight_quantization=weight_quantization,
            cpu_kernels=cpu_kernels,
        ),
    )


def fill(runner: ModelRunner, vocabulary: int, blocks: Sequence[int]) -> None:
    """Write real keys and values into all of `blocks`.

    Each piece is computed as if it was a sequence of its own: what a decode reads is as large and as far
    apart in memory, and the time to fill it does not grow with the square of the context.
    """
    for first in range(0, len(blocks), PIECE_BLOCKS):
        piece = tuple(blocks[first : first + PIECE_BLOCKS])
        tokens = some_tokens(len(piece) * BLOCK_SIZE_TOKENS, vocabulary)
        runner.execute(StepBatch((Chunk(0, tokens, 0, piece, None),)))


def some_tokens(count: int, vocabulary: int) -> tuple[int, ...]:
    """Token ids, the same ones each time."""
    return tuple(1 + (7 * index) % (vocabulary - 1) for index in range(count))
