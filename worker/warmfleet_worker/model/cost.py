"""What a model reads and computes, from its configuration."""

import math
from typing import Final

from warmfleet_worker.engine.roofline import ModelCost
from warmfleet_worker.kv_cache.layout import KvShape
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.shapes import expected_shapes

_QUANTISED_WEIGHT_BYTES: Final = {"Int8": 17 / 16}
"""Of a weight and its share of a scale."""


def model_cost(config: ModelConfig, element_bytes: int, weight_quantization: str = "None") -> ModelCost:
    """The cost of this model with weights, unless they are quantised, and KV of `element_bytes` each.

    Of layers without experts: each token is multiplied by all their weights.
    An embedding is read by rows, which count for nothing, and as the head where both are one.
    """
    shapes = expected_shapes(config)
    layers = sum(math.prod(shape) for name, shape in shapes.items() if name.startswith("model.layers."))
    is_quantised = weight_quantization != "None"
    return ModelCost(
        element_bytes=element_bytes,
        quantised_weight_bytes=_QUANTISED_WEIGHT_BYTES[weight_quantization] if is_quantised else 0.0,
        layer_weights=layers,
        head_weights=config.vocab_size * config.hidden_size,
        kv_bytes_per_token=KvShape(
            config.layers, config.kv_heads, config.head_dim, element_bytes
        ).bytes_per_token,
        flops_per_pair=4 * config.layers * config.heads * config.head_dim,
        window_tokens=config.window_tokens,
    )
