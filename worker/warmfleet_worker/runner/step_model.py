"""What a runner needs of a model: the seam between one step's chunks and how they are computed."""

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from warmfleet_worker.engine.batch import Chunk, SampleRequest
from warmfleet_worker.kv_cache.layout import KvLayout
from warmfleet_worker.model.computed import Computed, Rows
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.settings import Dtype


class ModelStep(Protocol[Rows]):
    """A step that a model computes."""

    def finish(self) -> Computed[Rows]:
        """Wait for its end. Also after an error, no step is in flight."""


class KvMemory(Protocol):
    """The memory of keys and values."""

    @property
    def layout(self) -> KvLayout: ...

    @property
    def total_blocks(self) -> int:
        """Blocks that a pool may allocate: ids 0 to `total_blocks` - 1."""

    def block_bytes(self, block_id: int) -> bytes:
        """Keys and values of one block, layer by layer, without padding."""

    def poison_blocks(self, block_ids: Sequence[int]) -> None:
        """Fill blocks with NaN, so that a read of unwritten slots is noticed."""


class StepModel(Protocol[Rows]):
    """A decoder with its KV arena. `NativeModel` computes on CPUs, `TorchModel` everywhere."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def arena(self) -> KvMemory: ...

    @property
    def dtype_name(self) -> Dtype:
        """Of activations, keys and values; never "Auto"."""

    @property
    def device_name(self) -> str:
        """Where it computes: "cpu" or "cuda"."""

    @property
    def exact(self) -> bool:
        """Whether a row's bits are the same in every batch, chunk and cache state."""

    @property
    def kernels(self) -> str:
        """What computes, as metrics and status name it: "torch", "triton", or an instruction-set level."""

    @property
    def revision(self) -> str:
        """Of what computes, if it is exact: another one may round differently. Else ""."""

    def begin(
        self, chunks: Sequence[Chunk], wanted: Sequence[int], requests: Sequence[SampleRequest]
    ) -> ModelStep[Rows]:
        """Hand over a step that computes and stores the KV of every chunk, and return.

        One step at a time: nothing else is called until it is finished.

        Args:
            chunks: their block tables stay as they are until then. Rows are their tokens, in order.
            wanted: rows whose hidden states are wanted; ascending.
            requests: none, or one for each of `wanted`: then a token is chosen of its logits as they are.
        """

    def hidden_after_layers(self, chunks: Sequence[Chunk]) -> Rows:
        """Compute a step at once: what each layer read and the last one wrote, [layers + 1, rows, hidden]."""

    def logits(self, hidden: Rows) -> Rows:
        """Scores over the vocabulary, [rows, vocabulary], of rows of hidden states; at least float32."""

    def on_host(self, logits: Rows) -> NDArray[Any]:
        """The same rows in the memory of this process."""

    def choose(self, logits: NDArray[Any], requests: Sequence[SampleRequest]) -> list[int | None]:
        """One token id per row of `logits`; None for a row that is not finite.

        Bias and penalties have been applied; temperature, top-k, top-p, min-p and noise have not.
        """
