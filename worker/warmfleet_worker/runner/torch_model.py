"""A decoder in plain PyTorch: for GPUs, for every dtype, and for CPUs without the native step."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from warmfleet_worker.attention.backend import AttentionBackend
from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.engine.batch import Chunk, SampleRequest, finite_chunks
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.transformer import Decoder
from warmfleet_worker.runner.sampler import choose


class TorchModel:
    """A decoder, its KV arena and an attention backend.

    Not exact: a matrix product of PyTorch changes in its last bits with the number of rows.
    """

    exact: Final = False
    kernels: Final = "torch"
    revision: Final = ""

    def __init__(self, decoder: Decoder, arena: KvArena, attention: AttentionBackend) -> None:
        self.arena = arena
        self._decoder = decoder
        self._attention = attention
        self._device = arena.storage.device

    @property
    def config(self) -> ModelConfig:
        return self._decoder.config

    def hidden_rows(self, chunks: Sequence[Chunk], wanted: Sequence[int]) -> tuple[Tensor, list[bool]]:
        """As `StepModel.hidden_rows`."""
        hidden = self._hidden_states(chunks)
        rows = hidden if len(wanted) == hidden.shape[0] else hidden[self._as_index(list(wanted))]
        # A state that is not finite stays so through the layers.
        return rows, finite_chunks(hidden.isfinite().all(dim=1).tolist(), chunks)

    def hidden_after_layers(self, chunks: Sequence[Chunk]) -> Tensor:
        """As `StepModel.hidden_after_layers`."""
        trace: list[Tensor] = []
        last = self._hidden_states(chunks, trace)
        return torch.stack([*trace, last])

    def logits(self, hidden: Tensor) -> Tensor:
        """As `StepModel.logits`."""
        return self._decoder.logits(hidden)

    def choose(self, logits: Tensor, requests: Sequence[SampleRequest]) -> list[int | None]:
        """As `StepModel.choose`."""
        return choose(logits, requests)

    def _hidden_states(self, chunks: Sequence[Chunk], trace: list[Tensor] | None = None) -> Tensor:
        return self._decoder.hidden_states(
            self._as_index([token for chunk in chunks for token in chunk.token_ids]),
            self._as_index([position for chunk in chunks for position in _positions(chunk)]),
            self._attention.plan(chunks),
            trace,
        )

    def _as_index(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _positions(chunk: Chunk) -> range:
    return range(chunk.first_position, chunk.first_position + len(chunk.token_ids))
