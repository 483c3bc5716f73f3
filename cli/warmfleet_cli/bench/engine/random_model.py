"""Writes a model of a known shape with random weights: for speed it is as good as a real one.

python -m warmfleet_cli.bench.engine.random_model SHAPE FOLDER
"""

import json
import math
import sys
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.shapes import expected_shapes

SHAPES: Final[dict[str, dict[str, Any]]] = {
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
    },
}


def write_random_model(shape: dict[str, Any], folder: Path, seed: int = 0) -> None:
    """Write `config.json` and `model.safetensors` in bfloat16; activations keep about their size.

    Numbers are drawn by a GPU where there is one: a processor takes minutes for billions of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(seed)
    tensors = {}
    for name, size in expected_shapes(load_model_config(folder)).items():
        if len(size) == 1:
            tensors[name] = torch.ones(size, dtype=torch.bfloat16)
        else:
            values = torch.empty(size, dtype=torch.bfloat16, device=device).normal_(generator=generator)
            tensors[name] = values.div_(math.sqrt(size[1])).cpu()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> int:
    write_random_model(SHAPES[sys.argv[1]], Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
