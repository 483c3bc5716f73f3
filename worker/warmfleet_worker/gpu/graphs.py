"""Captured graphs of whole steps.

A step has hundreds of kernels, and a processor takes longer to launch most of them than the GPU to compute
them. A graph is launched at once.
"""

from collections.abc import Sequence

import torch

from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.gpu.decoder import KernelLayers
from warmfleet_worker.gpu.inputs import StepInputs
from warmfleet_worker.gpu.step_shape import StepShape
from warmfleet_worker.model.computed import StepRows
from warmfleet_worker.model.transformer import Decoder


class StepGraphs:
    """A graph of a decoder's step for each of some shapes, captured when it is made.

    graphs = StepGraphs(decoder, layers, graph_shapes(32, most_blocks=256), tile_tokens=32)
    rows = graphs.run(chunks, shape)  # queued, valid until the next run
    """

    def __init__(
        self, decoder: Decoder, layers: KernelLayers, shapes: Sequence[StepShape], *, tile_tokens: int
    ) -> None:
        """Capture them, the largest first: the others share its memory."""
        embedding = decoder.embedding
        self._decoder = decoder
        self._layers = layers
        self._inputs = {shape: StepInputs(shape, tile_tokens, embedding.device) for shape in shapes}
        most_rows = max(shape.rows for shape in shapes)
        scored_rows = max((shape.rows for shape in shapes if _has_scores(shape)), default=0)
        self._hidden = embedding.new_empty((most_rows, embedding.shape[1]))
        self._logits = embedding.new_empty((scored_rows, len(decoder.head.weight)), dtype=torch.float32)
        pool = torch.cuda.graph_pool_handle()
        largest_first = sorted(shapes, key=lambda shape: -shape.rows)
        self._graphs = {shape: self._captured(shape, pool) for shape in largest_first}

    def run(self, chunks: Sequence[Chunk], shape: StepShape) -> StepRows[torch.Tensor]:
        """Queue a step by the graph of that shape; of decodes alone with scores, in float32."""
        self._inputs[shape].write(chunks)
        self._graphs[shape].replay()
        rows = sum(len(chunk.token_ids) for chunk in chunks)
        return StepRows(self._hidden[:rows], self._logits[:rows] if _has_scores(shape) else None)

    @torch.inference_mode()
    def _captured(self, shape: StepShape, pool: "torch.cuda._POOL_HANDLE") -> torch.cuda.CUDAGraph:
        self._inputs[shape].write(())  # no token: nothing of the arena is read or written
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._compute(shape)  # libraries are loaded outside of a capture
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._compute(shape)
        return graph

    def _compute(self, shape: StepShape) -> None:
        hidden, normed = self._layers(self._inputs[shape])
        self._hidden[: shape.rows].copy_(hidden)
        if _has_scores(shape):
            self._logits[: shape.rows].copy_(self._decoder.head(normed))


def _has_scores(shape: StepShape) -> bool:
    """Where every row is a sequence's newest: else few of them are asked for."""
    return shape.tiles == 0
