"""The tensors of a layer as the native step takes them: the one list of their names and sizes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.layers import RmsNorm
from warmfleet_worker.model.transformer import DecoderLayer


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """A matrix of weights, [outputs, inputs]."""

    outputs: int
    inputs: int
    interleaved: bool = False
    """The two halves of the outputs (gate and up) are packed panel by panel in turn."""


@dataclass(frozen=True, slots=True)
class LayerTensor:
    """One field of `wf_layer` in csrc/warmfleet_step.h. A vector is one of float32; a matrix is packed."""

    name: str
    shape: Callable[[ModelConfig], MatrixShape | int]
    """Of a vector: its length."""
    read: Callable[[DecoderLayer], Tensor | None]
    """None: layers of this model have none."""


def _qkv_outputs(config: ModelConfig) -> int:
    return (config.heads + 2 * config.kv_heads) * config.head_dim


def _query(config: ModelConfig) -> int:
    return config.heads * config.head_dim


def _of(norm: RmsNorm | None) -> Tensor | None:
    return None if norm is None else norm.weight


LAYER_TENSORS: Final = (
    LayerTensor("input_norm", lambda c: c.hidden_size, lambda layer: layer.input_norm.weight),
    LayerTensor("mlp_norm", lambda c: c.hidden_size, lambda layer: layer.mlp_norm.weight),
    LayerTensor("query_norm", lambda c: c.head_dim, lambda layer: _of(layer.query_norm)),
    LayerTensor("key_norm", lambda c: c.head_dim, lambda layer: _of(layer.key_norm)),
    LayerTensor("qkv", lambda c: MatrixShape(_qkv_outputs(c), c.hidden_size), lambda layer: layer.qkv.weight),
    LayerTensor("output", lambda c: MatrixShape(c.hidden_size, _query(c)), lambda layer: layer.output.weight),
    LayerTensor(
        "gate_up",
        lambda c: MatrixShape(2 * c.intermediate_size, c.hidden_size, interleaved=True),
        lambda layer: layer.gate_up.weight,
    ),
    LayerTensor(
        "down", lambda c: MatrixShape(c.hidden_size, c.intermediate_size), lambda layer: layer.down.weight
    ),
    LayerTensor("qkv_bias", _qkv_outputs, lambda layer: layer.qkv.bias),
    LayerTensor("output_bias", lambda c: c.hidden_size, lambda layer: layer.output.bias),
)
"""In the order of `wf_layer`'s fields."""
