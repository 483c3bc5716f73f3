"""Steps of a decoder: what `TorchModel` needs of them, and how plain PyTorch computes them."""

from collections.abc import Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from warmfleet_worker.attention.backend import AttentionBackend
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.model.computed import StepRows
from warmfleet_worker.model.transformer import Decoder


class TorchSteps(Protocol):
    """Computes the layers of a decoder over a KV arena."""

    @property
    def kernels(self) -> str:
        """As `StepModel.kernels`."""

    def rows(self, chunks: Sequence[Chunk]) -> StepRows[Tensor]:
        """Store keys and values of every chunk, and compute a row for each of their tokens, in order.

        A device may go on computing after this.
        """

    def after_layers(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """The same step: what each layer reads, then what the last one writes, [rows, hidden] each."""


class PlainSteps:
    """Every operation is one of PyTorch's; for every device and dtype."""

    kernels: Final = "torch"

    def __init__(self, decoder: Decoder, attention: AttentionBackend) -> None:
        self._decoder = decoder
        self._attention = attention
        self._device = decoder.embedding.device

    def rows(self, chunks: Sequence[Chunk]) -> StepRows[Tensor]:
        """As `TorchSteps.rows`."""
        return StepRows(self._hidden(chunks))

    def after_layers(self, chunks: Sequence[Chunk]) -> list[Tensor]:
        """As `TorchSteps.after_layers`."""
        trace: list[Tensor] = []
        hidden = self._hidden(chunks, trace)
        return [*trace, hidden]

    def _hidden(self, chunks: Sequence[Chunk], trace: list[Tensor] | None = None) -> Tensor:
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
