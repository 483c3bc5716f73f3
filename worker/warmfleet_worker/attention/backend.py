"""What the decoder needs of attention over the KV arena, however it is computed."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_worker.engine.batch import Chunk


class UnsupportedLayout(WarmfleetError):  # noqa: N818 - named after what is wrong
    """A backend was given a KV layout whose strides it cannot follow."""


class StepAttention(Protocol):
    """Attention of one step: writes each token's key and value into the arena, then attends.

    Keys and values are read back as stored, the step's own included: whether a token was computed now
    or came from the cache cannot make a difference.
    """

    def __call__(self, layer: int, query: Tensor, key_value: Tensor) -> Tensor:
        """Attend in `layer`.

        Args:
            layer: Index of the decoder layer.
            query: [tokens, heads, head_dim], rotated. The tokens of all chunks, in order.
            key_value: [tokens, 2 x kv_heads, head_dim]: the rotated keys, then the values.

        Returns:
            [tokens, heads, head_dim].
        """


class AttentionBackend(Protocol):
    """Plans a step once; the plan then serves every layer. Implement it to add a kernel to the plain decoder.

    `runner/torch_loading` chooses the backend and constructs it, as in
    `TorchGatherAttention(arena, heads=32, window_tokens=0, max_context_tokens=4096)`. The constructor raises
    `UnsupportedLayout` for an arena that it cannot use. A GPU has kernels of its own, in `gpu`
    behind `runner.torch_steps`.
    Its outputs equal `reference.reference_attention` but for rounding.
    """

    def plan(self, chunks: Sequence[Chunk]) -> StepAttention:
        """Turn positions and block tables into what the kernels read. Does not write to the arena."""
