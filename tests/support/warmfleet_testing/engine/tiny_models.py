"""Seeded tiny models of every family, as Hugging Face folders: the oracle of the parity tests loads them too.

Weights are drawn so large that greedy output wanders through the vocabulary instead of repeating itself:
a wrong key or value then changes the tokens, and not only a logit's last digit.
"""

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.shapes import expected_shapes

LLAMA3_ROPE: Final[Mapping[str, Any]] = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MATRIX_GAIN: Final = 2.0
"""Standard deviation of a projection's output for inputs of unit variance."""
EMBEDDING_SCALE: Final = 0.25
"""Standard deviation of an embedding: small enough that tied embeddings give logits of moderate size."""

DECISIVE_SEEDS: Final[Mapping[str, int]] = {"llama": 8, "mistral": 17, "qwen2": 0, "qwen3": 15}
"""Seeds with which no greedy choice of 500 after `decisive_prompt` is a near tie: another CPU's rounding
changes logits by 1e-4 at most, the best two are further apart (a parity test holds them to it)."""
DECISIVE_MARGIN: Final = 1e-3

_BASE: Final[Mapping[str, Any]] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_OF_FAMILY: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 24},
}
TINY_FAMILIES: Final = tuple(_OF_FAMILY)


def tiny_model_folder(family: str, folder: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Write `config.json` and `model.safetensors` of a tiny model into `folder`, and return it.

    `overrides` are fields of `config.json`. The same arguments give the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {**_BASE, **_OF_FAMILY[family], "torch_dtype": "float32", **overrides}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tiny_weights(folder, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def decisive_prompt(vocabulary: int = 512) -> list[int]:
    """69 token ids: four blocks of 16 and a rest."""
    draw = random.Random(7)
    return [draw.randrange(vocabulary) for _ in range(69)]


def tiny_weights(folder: Path, seed: int = 0) -> dict[str, Tensor]:
    """Random weights for the configuration in `folder`, by Hugging Face name."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: _draw(name, shape, generator)
        for name, shape in expected_shapes(load_model_config(folder)).items()
    }


def _draw(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return 1.0 + 0.1 * noise
    if name.endswith(".bias"):
        return 0.5 * noise
    if name == "model.embed_tokens.weight":
        return noise * EMBEDDING_SCALE
    return noise * (MATRIX_GAIN / math.sqrt(shape[1]))
