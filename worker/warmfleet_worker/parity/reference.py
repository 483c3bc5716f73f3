"""A decoder in float64 with the weights that an engine has, over the attention that reads like its formula.

Whole sequences from position 0, without a cache that outlives a layer. Layers are widened one at a time, so
that a model takes no more memory than its weights and one layer in float64.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.attention.reference import reference_attention
from warmfleet_worker.kv_cache.block_table import blocks_for
from warmfleet_worker.kv_cache.layout import KEYS_AND_VALUES, KvShape, kv_layout
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.layers import Linear, RmsNorm
from warmfleet_worker.model.rope import RotaryTable, Rotation
from warmfleet_worker.model.transformer import Decoder, DecoderLayer, layer_output

_BLOCK_TOKENS: Final = 16
_CPU: Final = torch.device("cpu")
_VOCABULARY_SLICE: Final = 8192


class Reference:
    """`decoder`, computed in float64.

    Args:
        decoder: on the CPU, its weights rounded to the engine's dtype: what is left to compare is arithmetic.
        tokens: length of the sequences.
    """

    def __init__(self, decoder: Decoder, tokens: int) -> None:
        self._decoder = decoder
        # In float32, as models define the table; a narrower engine may round it.
        precision = torch.promote_types(decoder.embedding.dtype, torch.float32)
        rotation = RotaryTable(decoder.config, tokens, precision, _CPU).at(torch.arange(tokens))
        self.rotation = Rotation(rotation.cosine.double(), rotation.signed_sine.double())
        self._attend = _WholeSequence(decoder.config, tokens)

    @property
    def config(self) -> ModelConfig:
        return self._decoder.config

    def embedded(self, token_ids: Sequence[int]) -> Tensor:
        """What the first layer reads, [tokens, hidden]."""
        return self._decoder.embedding[torch.tensor(token_ids)].double()

    def layers(self) -> Iterator[DecoderLayer]:
        """The layers in float64, each made when it is asked for."""
        return map(_widened_layer, self._decoder.layers)

    def after(self, layer: DecoderLayer, hidden: Tensor) -> Tensor:
        """Residual stream of a whole sequence after a layer, from that before it."""
        return layer_output(self.config, layer, hidden, self.rotation, self._attend)

    def head(self) -> Iterator[tuple[RmsNorm, Linear]]:
        """Final norm and head in float64, for one slice of the vocabulary after the other."""
        norm, head = self._decoder.final_norm, self._decoder.head
        for first in range(0, head.weight.shape[0], _VOCABULARY_SLICE):
            yield _widened_norm(norm), Linear(head.weight[first : first + _VOCABULARY_SLICE].double())

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores over the vocabulary of rows behind the last layer."""
        return torch.cat([head(norm(hidden)) for norm, head in self.head()], dim=-1)


class _WholeSequence:
    """Attention of one layer over a sequence that begins with it: stores keys and values, then attends."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        blocks = blocks_for(tokens, _BLOCK_TOKENS)
        shape = KvShape(layers=1, kv_heads=config.kv_heads, head_dim=config.head_dim, element_bytes=8)
        self._arena = KvArena(kv_layout(shape, _BLOCK_TOKENS), blocks, torch.float64, _CPU)
        self._block_ids = range(blocks)
        self._window_tokens = config.window_tokens

    def __call__(self, query: Tensor, key_value: Tensor) -> Tensor:
        tokens, planes, head_dim = key_value.shape
        slots = key_value.new_zeros(len(self._block_ids) * _BLOCK_TOKENS, planes, head_dim)
        slots[:tokens] = key_value
        pages = slots.view(-1, _BLOCK_TOKENS, KEYS_AND_VALUES, planes // KEYS_AND_VALUES, head_dim)
        self._arena.layer(0)[: len(self._block_ids)] = pages.permute(0, 2, 3, 1, 4)
        return reference_attention(self._arena, 0, query, self._block_ids, 0, self._window_tokens)


def _widened_layer(layer: DecoderLayer) -> DecoderLayer:
    return replace(
        layer,
        input_norm=_widened_norm(layer.input_norm),
        qkv=_widened_linear(layer.qkv),
        query_norm=_widened_norm(layer.query_norm) if layer.query_norm is not None else None,
        key_norm=_widened_norm(layer.key_norm) if layer.key_norm is not None else None,
        output=_widened_linear(layer.output),
        mlp_norm=_widened_norm(layer.mlp_norm),
        gate_up=_widened_linear(layer.gate_up),
        down=_widened_linear(layer.down),
    )


def _widened_norm(norm: RmsNorm) -> RmsNorm:
    return RmsNorm(norm.weight.double(), norm.epsilon)


def _widened_linear(linear: Linear) -> Linear:
    return Linear(linear.weight.double(), None if linear.bias is None else linear.bias.double())
