"""Captured graphs of whole decode steps.

A step has hundreds of kernels, and a processor takes longer to launch most of them than the GPU to compute
them. A graph is launched at once.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.gpu.decoder import DecodeLayers
from warmfleet_worker.gpu.graph_rows import GRAPH_ROWS
from warmfleet_worker.gpu.inputs import DecodeInputs
from warmfleet_worker.kv_cache.block_table import blocks_for
from warmfleet_worker.model.transformer import Decoder

_WARM_RUNS: Final = 2
"""Before a capture, outside of it: kernels are compiled and libraries loaded then."""


class DecodeGraphs:
    """Graphs of a decoder over an arena, captured when it is made.

    graphs = DecodeGraphs(decoder, arena, max_context_tokens=4096)
    if rows := graph_rows(chunks):
        hidden, logits = graphs.run(chunks, rows)  # queued, valid until the next run
    """

    def __init__(self, decoder: Decoder, arena: KvArena, *, max_context_tokens: int) -> None:
        """Capture them, the largest first: the others share its memory."""
        device = arena.storage.device
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._layers = DecodeLayers(decoder, arena, processors=processors)
        blocks = blocks_for(max_context_tokens, arena.layout.block_size_tokens)
        self._inputs = DecodeInputs(GRAPH_ROWS[-1], blocks, device)
        embedding = decoder.embedding
        self._hidden = embedding.new_empty((GRAPH_ROWS[-1], embedding.shape[1]))
        self._logits = embedding.new_empty((GRAPH_ROWS[-1], len(decoder.head.weight)), dtype=torch.float32)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        pool = torch.cuda.graph_pool_handle()
        for rows in reversed(GRAPH_ROWS):
            self._graphs[rows] = self._captured(rows, pool)

    def run(self, chunks: Sequence[Chunk], rows: int) -> tuple[Tensor, Tensor]:
        """Queue a step by the graph of so many rows: what `DecodeLayers` gives, with scores in float32."""
        count = len(chunks)
        self._inputs.write(chunks, rows)
        self._graphs[rows].replay()
        return self._hidden[:count], self._logits[:count]

    def after_layers(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """Compute a step without a graph: what each layer read, and the last one wrote."""
        trace: list[Tensor] = []
        self._inputs.write(chunks, len(chunks))
        token_ids, tables = self._inputs.token_ids(len(chunks)), self._inputs.tables(len(chunks))
        hidden, _ = self._layers(token_ids, tables, trace)
        return [*trace, hidden]

    @torch.inference_mode()
    def _captured(self, rows: int, pool: "torch.cuda._POOL_HANDLE") -> torch.cuda.CUDAGraph:
        self._inputs.write((), rows)  # no sequence: nothing of the arena is read or written
        token_ids, tables = self._inputs.token_ids(rows), self._inputs.tables(rows)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_RUNS):
                self._layers(token_ids, tables)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            hidden, logits = self._layers(token_ids, tables)
            self._hidden[:rows].copy_(hidden)
            self._logits[:rows].copy_(logits)
        return graph
