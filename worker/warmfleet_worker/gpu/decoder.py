"""The layers of a decoder on a GPU: products, and kernels for what is between.

It computes what `model.transformer.Decoder` does with `attention.torch_gather`, and rounds less often. A
family that changes one changes both; tests compare them.
"""

import torch.nn.functional as F  # noqa: N812 - the name every torch reader expects
from torch import Tensor

from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.gpu.inputs import StepInputs
from warmfleet_worker.gpu.launches import (
    HeadNorms,
    LayerCache,
    add_and_normalise,
    attend,
    gated,
    rotate_and_store,
)
from warmfleet_worker.gpu.step_tables import StepTables
from warmfleet_worker.model.transformer import Decoder, DecoderLayer


class KernelLayers:
    """A decoder over a KV arena; what it does fits into a graph.

    layers = KernelLayers(decoder, arena, processors=132)
    hidden, normed = layers(inputs)  # of a step, `StepInputs`
    """

    def __init__(self, decoder: Decoder, arena: KvArena, *, processors: int) -> None:
        """`processors` of the GPU: programs for each are made of long contexts."""
        self._decoder = decoder
        self._caches = [
            LayerCache(arena.storage, arena.layout, layer) for layer in range(len(decoder.layers))
        ]
        self._processors = processors
        self._norms = [_head_norms(layer) for layer in decoder.layers]

    def __call__(self, inputs: StepInputs, trace: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Store the keys and values of each token, and compute what follows it.

        Returns the residual stream after the last layer and its final norm, [rows, hidden] each. `trace` gets
        what each layer reads.
        """
        decoder, config, tables = self._decoder, self._decoder.config, inputs.tables
        residual = F.embedding(inputs.token_ids, decoder.embedding)
        added: Tensor | None = None
        for index, layer in enumerate(decoder.layers):
            normed = add_and_normalise(residual, added, layer.input_norm.weight, layer.input_norm.epsilon)
            if trace is not None:
                trace.append(residual.clone())
            query = self._query(index, layer, normed, tables)
            attend(
                query,
                self._caches[index],
                tables,
                window_tokens=config.window_tokens,
                processors=self._processors,
            )
            added = layer.output(query.flatten(1))
            normed = add_and_normalise(residual, added, layer.mlp_norm.weight, layer.mlp_norm.epsilon)
            added = layer.down(gated(layer.gate_up(normed)))
        normed = add_and_normalise(residual, added, decoder.final_norm.weight, decoder.final_norm.epsilon)
        return residual, normed

    def _query(self, index: int, layer: DecoderLayer, normed: Tensor, tables: StepTables) -> Tensor:
        config, rotary = self._decoder.config, self._decoder.rotary
        projected = layer.qkv(normed).view(-1, config.heads + 2 * config.kv_heads, config.head_dim)
        query = projected.new_empty((projected.shape[0], config.heads, config.head_dim))
        rotate_and_store(
            projected,
            query,
            self._norms[index],
            rotary.cosine,
            rotary.signed_sine,
            self._caches[index],
            tables,
        )
        return query


def _head_norms(layer: DecoderLayer) -> HeadNorms | None:
    if layer.query_norm is None or layer.key_norm is None:
        return None
    assert layer.query_norm.epsilon == layer.key_norm.epsilon
    return HeadNorms(layer.query_norm.weight, layer.key_norm.weight, layer.query_norm.epsilon)
