"""The tensors of a layer as the native step takes them: the one list of their names and sizes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warmfleet_worker.model.config import ModelConfig


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
    names: tuple[str, ...]
    """Tensors of a layer that are stacked to it. A vector that the layers lack is NULL."""


def _qkv_outputs(config: ModelConfig) -> int:
    return (config.heads + 2 * config.kv_heads) * config.head_dim


_QKV: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

LAYER_TENSORS: Final = (
    LayerTensor("input_norm", lambda c: c.hidden_size, ("input_layernorm.weight",)),
    LayerTensor("mlp_norm", lambda c: c.hidden_size, ("post_attention_layernorm.weight",)),
    LayerTensor("query_norm", lambda c: c.head_dim, ("self_attn.q_norm.weight",)),
    LayerTensor("key_norm", lambda c: c.head_dim, ("self_attn.k_norm.weight",)),
    LayerTensor(
        "qkv",
        lambda c: MatrixShape(_qkv_outputs(c), c.hidden_size),
        tuple(f"{module}.weight" for module in _QKV),
    ),
    LayerTensor(
        "output",
        lambda c: MatrixShape(c.hidden_size, c.heads * c.head_dim),
        ("self_attn.o_proj.weight",),
    ),
    LayerTensor(
        "gate_up",
        lambda c: MatrixShape(2 * c.intermediate_size, c.hidden_size, interleaved=True),
        ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    ),
    LayerTensor("down", lambda c: MatrixShape(c.hidden_size, c.intermediate_size), ("mlp.down_proj.weight",)),
    LayerTensor("qkv_bias", _qkv_outputs, tuple(f"{module}.bias" for module in _QKV)),
    LayerTensor("output_bias", lambda c: c.hidden_size, ("self_attn.o_proj.bias",)),
)
"""In the order of `wf_layer`'s fields."""
