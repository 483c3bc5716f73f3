"""What a runner needs of a model: the seam between one step's chunks and how they are computed."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.engine.batch import Chunk, SampleRequest
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

    @property
    def revision(self) -> str:
        """Of what computes, if it is exact: another one may round differently. Else ""."""

    def hidden_rows(self, chunks: Sequence[Chunk], wanted: Sequence[int]) -> tuple[Tensor, list[bool]]:
        """Compute and store the KV of every chunk.

        Rows are the tokens of all chunks, in order; `wanted` ascends.

        Returns:
            Hidden states after the last layer of the `wanted` rows, [wanted, hidden], before the final
            norm, and for each chunk whether all of its own are finite.
        """

    def hidden_after_layers(self, chunks: Sequence[Chunk]) -> Tensor:
        """As `hidden_rows`, but what each layer read and the last one wrote: [layers + 1, rows, hidden]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, [rows, vocabulary], of rows of hidden states."""

    def choose(self, logits: Tensor, requests: Sequence[SampleRequest]) -> list[int | None]:
        """One token id per row of float32 `logits`; None for a row that is not finite.

        Bias and penalties have been applied; temperature, top-k, top-p, min-p and noise have not.
        """
