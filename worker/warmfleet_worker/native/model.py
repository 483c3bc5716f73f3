"""A decoder that the native step computes: packed weights, KV arena and threads behind `StepModel`."""

from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

import numpy as np

from warmfleet_runtime.processors import usable_cores
from warmfleet_worker.engine.batch import Chunk, SampleRequest
from warmfleet_worker.kv_cache.layout import KvLayout
from warmfleet_worker.model.checkpoint import CheckpointReader
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.rotary_frequencies import rotary_table
from warmfleet_worker.native.arena import NativeArena
from warmfleet_worker.native.build import source_hash
from warmfleet_worker.native.formats import DTYPE_NAMES, KV_DTYPES, KvElement, WeightFormat
from warmfleet_worker.native.levels import Level
from warmfleet_worker.native.library import ModelStruct, NativeLibrary
from warmfleet_worker.native.step import FloatRows, NativeStep, RowBuffer, chosen, sampling_structs
from warmfleet_worker.native.weights import PackedWeights, Region

MAX_HEAD_DIM: Final = 512
MAX_HEADS: Final = 1024
MAX_WIDTH: Final = 2**20
"""Of hidden states, queries and the MLP; larger than in any model, and their products fit into 64 bits."""
MAX_VOCABULARY: Final = 2**24
MAX_POSITIONS: Final = 2**26
GROUP_TOKENS: Final = 16
"""Keys of so many tokens are read at a time: a block holds a whole number of groups."""
_ARENA_SLACK_BYTES: Final = 64 * 1024
"""The last group of an odd head size is read past its end."""


def native_refusal(config: ModelConfig, block_size_tokens: int) -> str:
    """Why the native step cannot compute a model; "" if it can."""
    if config.head_dim > MAX_HEAD_DIM:
        return f"a head of {config.head_dim} is larger than {MAX_HEAD_DIM}"
    width = max(config.hidden_size, config.intermediate_size, config.heads * config.head_dim)
    if config.heads > MAX_HEADS or width > MAX_WIDTH:
        return f"{config.heads} heads and a width of {width} are more than {MAX_HEADS} and {MAX_WIDTH}"
    if config.vocab_size > MAX_VOCABULARY or config.max_position > MAX_POSITIONS:
        return (
            f"{config.vocab_size} tokens and {config.max_position} positions are more than {MAX_VOCABULARY} "
            f"and {MAX_POSITIONS}"
        )
    if block_size_tokens % GROUP_TOKENS:
        return f"a block of {block_size_tokens} tokens is no multiple of {GROUP_TOKENS}"
    return ""


class NativeModel:
    """Weights, KV arena and threads of the native step; `begin` computes chunks, `logits` the head.

    A row's bits depend on its tokens and its level alone: not on the batch, on chunks, or on what was cached.
    """

    exact: Final = True
    device_name: Final = "cpu"

    def __init__(
        self,
        library: NativeLibrary,
        reader: CheckpointReader,
        config: ModelConfig,
        layout: KvLayout,
        total_blocks: int,
        *,
        level: Level,
        threads: int,
        positions: int,
        weight_format: WeightFormat,
        kv_element: KvElement,
        poison: bool = False,
    ) -> None:
        """Pack the weights and allocate the arena.

        Raises:
            NativeStepError: There is no memory or no thread for it.
            ModelError: A tensor of the checkpoint is missing, damaged or misshapen.
        """
        threads = threads or usable_cores()
        self.config = config
        self.dtype_name: Final = DTYPE_NAMES[kv_element]
        self.kernels: Final = level.title
        self.revision: Final = source_hash() + weight_format.suffix
        self._library = library
        self._hidden = RowBuffer(config.hidden_size)
        self._logits = RowBuffer(config.vocab_size)
        self._step: NativeStep | None = None
        """The last one: what the library uses stays while it computes, also if its caller is gone."""
        self._cosine, self._sine = rotary_table(config, positions)
        with ExitStack() as made:
            self._weights = weights = PackedWeights(library, reader, config, weight_format, threads=threads)
            made.callback(weights.region.free)
            arena_bytes = (total_blocks + 1) * layout.block_stride_bytes
            region = Region(library, arena_bytes + _ARENA_SLACK_BYTES)
            made.callback(region.free)
            storage = region.view(region.address, arena_bytes, KV_DTYPES[kv_element])
            self.arena = NativeArena(layout, total_blocks, storage, poison=poison)
            self._engine = library.new_engine(
                _model_struct(
                    config,
                    layout,
                    weights,
                    level=level,
                    weight_format=weight_format,
                    kv_element=kv_element,
                    threads=threads,
                    total_blocks=total_blocks,
                    arena=region.address,
                    cosine=self._cosine,
                    sine=self._sine,
                )
            )
            made.callback(self._engine.close)
            self._stepper = library.new_stepper(self._engine)
            made.callback(self._stepper.close)
            self._made = made.pop_all()

    def close(self) -> None:
        """End the threads, after the step in flight, and free weights and arena; nothing is computed then."""
        self._made.close()

    def __del__(self) -> None:
        if hasattr(self, "_made"):
            self.close()

    def begin(
        self, chunks: Sequence[Chunk], wanted: Sequence[int], requests: Sequence[SampleRequest]
    ) -> NativeStep:
        """As `StepModel.begin`: threads of the library compute it, and the interpreter goes on."""
        rows = len(wanted)
        self._step = NativeStep(
            self._library,
            self._stepper,
            chunks,
            wanted,
            self._hidden.take(rows),
            requests=requests,
            logits=self._logits.take(rows) if requests else None,
        )
        return self._step

    def hidden_after_layers(self, chunks: Sequence[Chunk]) -> FloatRows:
        """As `StepModel.hidden_after_layers`."""
        rows = sum(len(chunk.token_ids) for chunk in chunks)
        trace = np.empty((self.config.layers + 1, rows, self.config.hidden_size), np.float32)
        NativeStep(self._library, self._stepper, chunks, (), self._hidden.take(0), trace=trace).finish()
        return trace

    def logits(self, hidden: FloatRows) -> FloatRows:
        """As `StepModel.logits`, in float32."""
        rows = np.ascontiguousarray(hidden, np.float32)
        logits = np.empty((rows.shape[0], self.config.vocab_size), np.float32)
        self._library.logits(self._engine, rows.ctypes.data, rows.shape[0], logits.ctypes.data)
        return logits

    def on_host(self, logits: FloatRows) -> FloatRows:
        """As `StepModel.on_host`: they are."""
        return logits

    def choose(self, logits: FloatRows, requests: Sequence[SampleRequest]) -> list[int | None]:
        """As `StepModel.choose`: temperature, filters and noise are those of `runner.sampler`."""
        rows = np.ascontiguousarray(logits, np.float32)
        token_ids = array("i", bytes(4 * len(requests)))
        self._library.sample(
            self._engine,
            rows.ctypes.data,
            rows.shape[1],
            sampling_structs(requests),
            token_ids.buffer_info()[0],
        )
        return chosen(token_ids)


def _model_struct(
    config: ModelConfig,
    layout: KvLayout,
    weights: PackedWeights,
    *,
    level: Level,
    weight_format: WeightFormat,
    kv_element: KvElement,
    threads: int,
    total_blocks: int,
    arena: int,
    cosine: FloatRows,
    sine: FloatRows,
) -> ModelStruct:
    """A model as the library reads it: sizes, and addresses of what has to live as long as the engine.

    `cosine` and `sine` have a row for each position, [positions, head_dim / 2].
    """
    positions = cosine.shape[0]
    return ModelStruct(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocab_size,
        # A window that no sequence outgrows is none.
        window_tokens=config.window_tokens if config.window_tokens < positions else 0,
        positions=positions,
        weight_format=weight_format,
        kv_element=kv_element,
        level=level,
        threads=threads,
        norm_epsilon=config.norm_epsilon,
        block_size_tokens=layout.block_size_tokens,
        total_blocks=total_blocks,
        block_stride_bytes=layout.block_stride_bytes,
        layer_stride_bytes=layout.layer_stride_bytes,
        value_stride_bytes=layout.value_stride_bytes,
        head_stride_bytes=layout.head_stride_bytes,
        arena=arena,
        cosine=cosine.ctypes.data,
        sine=sine.ctypes.data,
        embedding=weights.embedding,
        head=weights.head,
        final_norm=weights.final_norm,
        layer=weights.layers,
    )
