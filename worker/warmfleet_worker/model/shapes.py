"""Names and shapes of a checkpoint's tensors, and the sizes that follow from them. No torch, no file."""

import math
from typing import Final

from warmfleet_contracts.resources.engine_memory import ModelSize
from warmfleet_worker.model.config import ModelConfig

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
FINAL_NORM: Final = "model.norm.weight"


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint of this configuration has, by its Hugging Face name."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    query, key_value = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, hidden),
        FINAL_NORM: (hidden,),
    }
    if not config.tied_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key_value, hidden),
        "self_attn.v_proj.weight": (key_value, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
    }
    if config.qkv_bias:
        layer |= {
            "self_attn.q_proj.bias": (query,),
            "self_attn.k_proj.bias": (key_value,),
            "self_attn.v_proj.bias": (key_value,),
        }
    if config.output_bias:
        layer["self_attn.o_proj.bias"] = (hidden,)
    if config.query_key_norm:
        layer |= {
            "self_attn.q_norm.weight": (config.head_dim,),
            "self_attn.k_norm.weight": (config.head_dim,),
        }
    for index in range(config.layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def model_size(config: ModelConfig) -> ModelSize:
    """What of a model determines the memory that it takes."""
    return ModelSize(
        parameters=sum(map(math.prod, expected_shapes(config).values())),
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        max_position_tokens=config.max_position,
    )
