"""What a runner needs of a model: the seam between one step's chunks and how they are computed."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.engine.batch import Chunk, SampleRequest
from warmfleet_worker.model.computed import Computed
from warmfleet_worker.model.config import ModelConfig


class ModelStep(Protocol):
    """A step that a model computes."""

    def finish(self) -> Computed:
        """Wait for its end. Also after an error, no step is in flight."""


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

    def begin(
        self, chunks: Sequence[Chunk], wanted: Sequence[int], requests: Sequence[SampleRequest]
    ) -> ModelStep:
        """Hand over a step that computes and stores the KV of every chunk, and return.

        One step at a time: nothing else is called until it is finished.

        Args:
            chunks: their block tables stay as they are until then. Rows are their tokens, in order.
            wanted: rows whose hidden states are wanted; ascending.
            requests: none, or one for each of `wanted`: then a token is chosen of its logits as they are.
        """

    def hidden_after_layers(self, chunks: Sequence[Chunk]) -> Tensor:
        """Compute a step at once: what each layer read and the last one wrote, [layers + 1, rows, hidden]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary, [rows, vocabulary], of rows of hidden states; at least float32."""

    def choose(self, logits: Tensor, requests: Sequence[SampleRequest]) -> list[int | None]:
        """One token id per row of `logits`; None for a row that is not finite.

        Bias and penalties have been applied; temperature, top-k, top-p, min-p and noise have not.
        """
