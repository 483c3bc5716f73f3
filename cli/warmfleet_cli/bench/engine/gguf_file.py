"""Writes a model folder's weights as a GGUF file in bfloat16: llama.cpp gets the same numbers.

python -m warmfleet_cli.bench.engine.gguf_file MODEL FILE

Names, metadata and the order of rows are those of llama.cpp's convert_hf_to_gguf.py. The file has no
tokenizer: only token ids go in and out.
"""

import re
import sys
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open

from warmfleet_worker.model.config import ModelConfig, load_model_config

_ARCHITECTURES: Final = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_WHOLE: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_PARTS: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(model: Path, file: Path) -> None:
    """Write every tensor of `model`.

    Raises:
        ValueError: llama.cpp has the architecture by another name, or a tensor is not known.
    """
    config = load_model_config(model)
    architecture = _ARCHITECTURES.get(config.architecture)
    if architecture is None or config.rope_scaling is not None:
        raise ValueError(f"no GGUF is written of {config.architecture} with these positions")
    writer = gguf.GGUFWriter(str(file), architecture)
    _write_metadata(writer, config)
    for shard in sorted(model.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                if name == "lm_head.weight" and config.tied_embeddings:
                    continue
                _add_tensor(
                    writer, name, _in_file_order(name, tensors.get_tensor(name), architecture, config)
                )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor.

    Raises:
        ValueError: it is not known.
    """
    if name in _WHOLE:
        return _WHOLE[name]
    found = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if found is None or found[2] not in _PARTS:
        raise ValueError(f"unknown tensor {name}")
    return f"blk.{found[1]}.{_PARTS[found[2]]}.{found[3]}"


def interleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a Q or K projection as llama's architecture has them: the two rotary halves of a head in turn.

    qwen2 and qwen3 keep Hugging Face's order.
    """
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape).contiguous()


def _in_file_order(name: str, tensor: torch.Tensor, architecture: str, config: ModelConfig) -> torch.Tensor:
    if architecture == "llama":
        if ".q_proj." in name:
            return interleaved(tensor, config.heads)
        if ".k_proj." in name:
            return interleaved(tensor, config.kv_heads)
    return tensor


def _add_tensor(writer: Any, name: str, tensor: torch.Tensor) -> None:
    if tensor.dim() == 1:  # llama.cpp wants norms and biases in float32
        writer.add_tensor(gguf_name(name), tensor.float().numpy())
        return
    words: npt.NDArray[np.int16] = tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy()
    writer.add_tensor(gguf_name(name), words.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def _write_metadata(writer: Any, config: ModelConfig) -> None:
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("none")


def main() -> int:
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
