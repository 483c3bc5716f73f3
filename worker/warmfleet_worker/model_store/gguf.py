"""Llama-architecture GGUF files, read as Hugging Face checkpoints name and order things.

Used once per catalog model, when it is pulled; the engine itself loads Hugging Face layouts only.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

from warmfleet_contracts.errors import ModelError

_CONTROL_TOKEN: Final = int(gguf.TokenType.CONTROL)

_WHOLE_MODEL_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR: Final = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor under its Hugging Face name; `shape` is (rows, columns) or (elements,)."""

    name: str
    shape: tuple[int, ...]
    position: int


class GgufModel:
    """A memory-mapped GGUF file of the llama architecture with a GPT-2 style BPE vocabulary."""

    def __init__(self, path: Path) -> None:
        """Map the file; raises ModelError for damage and for anything this reader does not know."""
        try:
            self._reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, OSError, KeyError) as error:
            raise ModelError(f"{path.name} is not a readable GGUF file: {error}") from error
        self._name = path.name
        for key, expected in (("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2")):
            if (found := self.metadata(key)) != expected:
                raise ModelError(f"{path.name}: {key} is {found!r}, only {expected!r} is supported")
        self._heads = int(self.metadata("llama.attention.head_count"))
        self._kv_heads = int(self.metadata("llama.attention.head_count_kv"))
        self.tensors = tuple(
            TensorEntry(
                name=_hugging_face_name(tensor.name),
                # GGUF lists the fastest dimension first.
                shape=tuple(int(size) for size in reversed(tensor.shape)),
                position=position,
            )
            for position, tensor in enumerate(self._reader.tensors)
        )

    def metadata(self, key: str, default: Any = None) -> Any:
        """A metadata value as plain Python; if it is absent, `default`, or a ModelError without one."""
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise ModelError(f"{self._name}: {key} is missing")
        return default

    def read(self, entry: TensorEntry) -> npt.NDArray[np.float32]:
        """The tensor in float32, dequantised, of `entry.shape`, rows in Hugging Face order."""
        tensor = self._reader.tensors[entry.position]
        values: npt.NDArray[np.float32] = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(
            entry.shape
        )
        if entry.name.endswith("q_proj.weight"):
            values = undo_rope_permutation(values, self._heads)
        if entry.name.endswith("k_proj.weight"):
            values = undo_rope_permutation(values, self._kv_heads)
        return values

    def config(self) -> dict[str, Any]:
        """`config.json`, from which `transformers` builds the same network."""
        hidden = int(self.metadata("llama.embedding_length"))
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": int(self.metadata("tokenizer.ggml.bos_token_id")),
            "dtype": "float32",
            "eos_token_id": int(self.metadata("tokenizer.ggml.eos_token_id")),
            "head_dim": int(self.metadata("llama.rope.dimension_count", hidden // self._heads)),
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": int(self.metadata("llama.feed_forward_length")),
            "max_position_embeddings": int(self.metadata("llama.context_length")),
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": self._heads,
            "num_hidden_layers": int(self.metadata("llama.block_count")),
            "num_key_value_heads": self._kv_heads,
            "pad_token_id": int(self.metadata("tokenizer.ggml.padding_token_id")),
            "rms_norm_eps": _shortest(self.metadata("llama.attention.layer_norm_rms_epsilon")),
            "rope_theta": _shortest(self.metadata("llama.rope.freq_base")),
            "tie_word_embeddings": all(entry.name != "lm_head.weight" for entry in self.tensors),
            "vocab_size": len(self.metadata("tokenizer.ggml.tokens")),
        }

    def tokenizer(self) -> dict[str, Any]:
        """`tokenizer.json` that encodes as llama.cpp does.

        Digits are separate pieces before the byte-level split, unlike in `transformers`' own conversion.
        There is no unknown token: the few bytes that the vocabulary lacks are dropped.
        """
        if (split := self.metadata("tokenizer.ggml.pre")) != "smollm":
            raise ModelError(f"{self._name}: tokenizer.ggml.pre is {split!r}, only 'smollm' is supported")
        tokens = self.metadata("tokenizer.ggml.tokens")
        types = self.metadata("tokenizer.ggml.token_type")
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": token_id,
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
                if kind == _CONTROL_TOKEN
            ],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
            },
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: token_id for token_id, token in enumerate(tokens)},
                "merges": [merge.split(" ") for merge in self.metadata("tokenizer.ggml.merges")],
            },
        }

    def special_tokens(self) -> dict[str, str]:
        """Names such as `bos_token`, as chat templates see them, with their text."""
        tokens = self.metadata("tokenizer.ggml.tokens")
        keys = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
        return {
            name: tokens[int(self.metadata(f"tokenizer.ggml.{key}_token_id"))] for name, key in keys.items()
        }

    def chat_template(self) -> str:
        return str(self.metadata("tokenizer.chat_template"))

    def __iter__(self) -> Iterator[TensorEntry]:
        return iter(self.tensors)


def undo_rope_permutation(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of a Q or K projection, (heads * head_dim, columns), back in Hugging Face order.

    llama.cpp stores the two rotary halves of each head interleaved; Hugging Face keeps them one after the
    other. Inverse of `permute` in llama.cpp's convert_hf_to_gguf.py.
    """
    interleaved = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return np.ascontiguousarray(interleaved.swapaxes(1, 2).reshape(rows.shape))


def tensor_bytes(entry: TensorEntry) -> int:
    """Size of the tensor in float32."""
    return math.prod(entry.shape) * 4


def _hugging_face_name(name: str) -> str:
    if whole := _WHOLE_MODEL_NAMES.get(name):
        return whole
    layer = _LAYER_TENSOR.fullmatch(name)
    if layer is None or layer[2] not in _LAYER_NAMES:
        raise ModelError(f"the GGUF tensor {name!r} does not belong to a llama model")
    return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.weight"


def _shortest(value: float) -> float:
    # 1e-05 stored as float32 reads as 9.999999747378752e-06; both are the same float32.
    return float(str(np.float32(value)))
