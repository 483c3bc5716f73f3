"""What a runner needs of a model: the seam between one step's chunks and how they are computed."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.model.config import ModelConfig


class StepModel(Protocol):
    """A decoder with its KV arena. `NativeModel` computes on CPUs, `TorchModel` everywhere."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def arena(self) -> KvArena: ...

    @property
    def exact(self) -> bool:
        """Whether a row's bits are the same in every batch, chunk and cache state."""

    @property
    def kernels(self) -> str:
        """What computes, as metrics and status name it: "torch", or an instruction-set level."""

    def hidden_rows(self, chunks: Sequence[Chunk], wanted: Sequence[int]) -> tuple[Tensor, list[bool]]:
        """Compute and store the KV of every chunk.

        Rows are the tokens of all chunks, in order; `wanted` ascends.

        Returns:
            Hidden states after the last layer of the `wanted` rows, [wanted, hidden], before the final
            norm, and for each chunk whether all of its own are finite.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, [rows, vocabulary], of rows of hidden states."""
