"""Every step of a decoder on a GPU: by a captured graph where one has room, else kernel by kernel."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.gpu.decoder import KernelLayers
from warmfleet_worker.gpu.graphs import StepGraphs
from warmfleet_worker.gpu.inputs import StepInputs
from warmfleet_worker.gpu.launches import PROGRAMS_PER_PROCESSOR, query_tile_tokens
from warmfleet_worker.gpu.step_shape import StepShape, graph_shapes, smallest_with_room, step_shape
from warmfleet_worker.kv_cache.block_table import blocks_for
from warmfleet_worker.model.computed import StepRows
from warmfleet_worker.model.transformer import Decoder


class GpuSteps:
    """A decoder over an arena; when it is made its kernels are compiled and its graphs captured.

    steps = GpuSteps(decoder, arena, max_context_tokens=4096)
    rows = steps.rows(chunks)  # queued
    """

    kernels: Final = "triton"

    def __init__(self, decoder: Decoder, arena: KvArena, *, max_context_tokens: int) -> None:
        """`max_context_tokens` of one sequence."""
        self._device = arena.storage.device
        processors = torch.cuda.get_device_properties(self._device).multi_processor_count
        self._layers = KernelLayers(decoder, arena, processors=processors)
        self._tile_tokens = query_tile_tokens(decoder.config.heads, arena.layout.shape)
        self._compile(max(1, PROGRAMS_PER_PROCESSOR * processors // decoder.config.kv_heads))
        self._block_size = arena.layout.block_size_tokens
        most_blocks = min(blocks_for(max_context_tokens, self._block_size), arena.total_blocks)
        self._shapes = graph_shapes(self._tile_tokens, most_blocks)
        self._graphs = StepGraphs(decoder, self._layers, self._shapes, tile_tokens=self._tile_tokens)

    def rows(self, chunks: Sequence[Chunk]) -> StepRows[Tensor]:
        """Queue a step: as `TorchSteps.rows`."""
        for chunk in chunks:
            end = chunk.first_position + len(chunk.token_ids)
            # Otherwise kernels would read on in the table of the next sequence.
            assert len(chunk.block_ids) >= blocks_for(end, self._block_size), chunk
        shape = step_shape(chunks, self._tile_tokens)
        if graph := smallest_with_room(shape, self._shapes):
            return self._graphs.run(chunks, graph)
        hidden, _ = self._layers(self._inputs(chunks, shape))
        return StepRows(hidden)

    def after_layers(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """As `TorchSteps.after_layers`, without a graph."""
        trace: list[Tensor] = []
        inputs = self._inputs(chunks, step_shape(chunks, self._tile_tokens))
        hidden, _ = self._layers(inputs, trace)
        return [*trace, hidden]

    def _inputs(self, chunks: Sequence[Chunk], shape: StepShape) -> StepInputs:
        inputs = StepInputs(shape, self._tile_tokens, self._device)
        inputs.write(chunks)
        return inputs

    @torch.inference_mode()
    def _compile(self, many_tiles: int) -> None:
        """Compute steps without tokens that take every kernel: a compiler's seconds belong to no request.

        The context of one tile is split among programs, those of `many_tiles` are not.
        """
        tile = self._tile_tokens
        for shape in (
            StepShape(rows=tile, singles=1, tiles=1, blocks=1),
            StepShape(rows=many_tiles * tile, singles=1, tiles=many_tiles, blocks=1),
            StepShape(rows=many_tiles, singles=many_tiles, tiles=0, blocks=1),
        ):
            self._layers(self._inputs((), shape))
