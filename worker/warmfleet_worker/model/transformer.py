"""The decoder that all families share: pre-norm attention (RoPE, GQA) and SwiGLU, as in Llama.

Tokens of all sequences of a step are flat, [tokens, hidden]; only attention distinguishes the sequences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from torch import Tensor

from warmfleet_worker.attention.backend import StepAttention
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.layers import Linear, RmsNorm, swiglu
from warmfleet_worker.model.rope import RotaryTable, Rotation


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer. Q, K, V and gate, up are fused: one GEMM each."""

    input_norm: RmsNorm
    qkv: Linear
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    output: Linear
    mlp_norm: RmsNorm
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder-only transformer."""

    config: ModelConfig
    embedding: Tensor
    """[vocabulary, hidden]."""
    layers: tuple[DecoderLayer, ...]
    final_norm: RmsNorm
    head: Linear
    """Shares the embedding's memory when the embeddings are tied."""
    rotary: RotaryTable

    def hidden_states(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: StepAttention,
        trace: list[Tensor] | None = None,
    ) -> Tensor:
        """Residual stream after the last layer, [tokens, hidden], before the final norm.

        `token_ids` and `positions` are [tokens] of int64. `trace` gets what each layer reads.
        """
        rotation = self.rotary.at(positions)
        hidden = F.embedding(token_ids, self.embedding)
        for index, layer in enumerate(self.layers):
            if trace is not None:
                trace.append(hidden)
            hidden = layer_output(self.config, layer, hidden, rotation, partial(attention, index))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary of rows of `hidden_states`."""
        return self.head(self.final_norm(hidden))


def layer_output(
    config: ModelConfig,
    layer: DecoderLayer,
    hidden: Tensor,
    rotation: Rotation,
    attend: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Residual stream after one layer, [tokens, hidden], from that before it.

    The same layer is in `gpu.decoder` by kernels, in `compute_layer` of native/csrc/step.c, and in
    `parity.rounding`, which bounds what rounding does to it. A family that changes one changes all.

    `attend` is that layer's part of a `StepAttention`.
    """
    query, key_value = _project(config, layer, layer.input_norm(hidden), rotation)
    hidden = hidden + layer.output(attend(query, key_value).flatten(1))
    return hidden + layer.down(swiglu(layer.gate_up(layer.mlp_norm(hidden))))


def _project(
    config: ModelConfig, layer: DecoderLayer, x: Tensor, rotation: Rotation
) -> tuple[Tensor, Tensor]:
    projected = layer.qkv(x).view(x.shape[0], config.heads + 2 * config.kv_heads, config.head_dim)
    # Q and K are normalised (Qwen3) and rotated; V is cached as it is.
    rotated = projected[:, : config.heads + config.kv_heads]
    if layer.query_norm is not None and layer.key_norm is not None:
        query, key = rotated[:, : config.heads], rotated[:, config.heads :]
        query.copy_(layer.query_norm(query))
        key.copy_(layer.key_norm(key))
    rotation.apply_(rotated)
    return projected[:, : config.heads], projected[:, config.heads :]
