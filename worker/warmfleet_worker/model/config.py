"""A model's configuration: Hugging Face's `config.json`, validated and reduced to what the decoder needs.

A family is one entry of `FAMILIES`: the differences to a plain Llama decoder, nothing else.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import ModelError
from warmfleet_worker.model.end_tokens import known_end_tokens

MAX_CONFIG_BYTES: Final = 1024 * 1024
"""A configuration is a few kilobytes; anything larger is not one."""

_DEFAULT_ROPE_THETA: Final = 10_000.0
_DEFAULT_NORM_EPSILON: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Family:
    """How an architecture differs from a plain Llama decoder. Absent fields take the family's defaults."""

    qkv_bias: bool | None = False
    """None: `attention_bias` of the configuration, which then applies to the output projection, too."""
    query_key_norm: bool = False
    """RMS norm over each head of Q and K before the rotation."""
    default_head_dim: int | None = None
    """None: hidden size / attention heads."""
    window: str = "none"
    """"always": `sliding_window` holds as it stands; "opt-in": only with `use_sliding_window`."""
    default_window_tokens: int = 4096


FAMILIES: Final[dict[str, Family]] = {
    "LlamaForCausalLM": Family(qkv_bias=None),
    "MistralForCausalLM": Family(window="always"),
    "Qwen2ForCausalLM": Family(qkv_bias=True, window="opt-in"),
    "Qwen3ForCausalLM": Family(qkv_bias=None, query_key_norm=True, default_head_dim=128, window="opt-in"),
}


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretch of the low rotary frequencies ("rope_type": "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only model. Sizes are element counts."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    max_position: int
    """Longest sequence in tokens that the model was trained for."""
    window_tokens: int
    """A token attends to this many tokens, itself included; 0 means all before it."""
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    query_key_norm: bool
    end_token_ids: tuple[int, ...]
    """Ascending; a sequence ends when one of them is sampled."""


def load_model_config(model_path: Path) -> ModelConfig:
    """Read `config.json` (and the end tokens of `generation_config.json`) from a model folder.

    Raises:
        ModelError: A file, by name, is missing, malformed, or needs something that is not supported.
    """
    path = model_path / "config.json"
    config = _read(path, _ConfigFile)
    try:
        return _model_config(config, _end_token_ids(model_path, config))
    except _Unsupported as error:
        raise ModelError(f"{path.name}: {error}") from None


_Positive = Annotated[int, msgspec.Meta(gt=0, le=2**31)]
_Layers = Annotated[int, msgspec.Meta(gt=0, le=4096)]
"""Each is some tensors to look for; models have a hundred."""
_PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
_TokenIds = int | list[int] | None
_File = TypeVar("_File")


class _ConfigFile(msgspec.Struct, frozen=True):
    """The fields of `config.json` that matter here, as transformers 4 and 5 write them."""

    architectures: list[str]
    vocab_size: _Positive
    hidden_size: _Positive
    intermediate_size: _Positive
    num_hidden_layers: _Layers
    num_attention_heads: _Positive
    max_position_embeddings: _Positive
    num_key_value_heads: _Positive | None = None
    head_dim: _Positive | None = None
    rms_norm_eps: _PositiveFloat = _DEFAULT_NORM_EPSILON
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_theta: _PositiveFloat | None = None
    sliding_window: _Positive | msgspec.UnsetType | None = msgspec.UNSET
    use_sliding_window: bool = False
    max_window_layers: int | None = None
    layer_types: list[str] | None = None
    quantization_config: dict[str, Any] | None = None
    eos_token_id: _TokenIds = None


class _GenerationFile(msgspec.Struct, frozen=True):
    eos_token_id: _TokenIds = None


class _RopeFields(msgspec.Struct, frozen=True):
    rope_type: str | None = None
    type: str | None = None
    rope_theta: _PositiveFloat | None = None
    partial_rotary_factor: float = 1.0
    factor: _PositiveFloat | None = None
    low_freq_factor: _PositiveFloat | None = None
    high_freq_factor: _PositiveFloat | None = None
    original_max_position_embeddings: _Positive | None = None


class _Unsupported(Exception):  # noqa: N818 - becomes a ModelError with the file's name
    """The configuration needs something that this engine does not support."""


def _model_config(config: _ConfigFile, end_token_ids: tuple[int, ...]) -> ModelConfig:
    architecture, family = _family(config.architectures)
    if config.hidden_act != "silu":
        raise _Unsupported(f"hidden_act {config.hidden_act!r} is not supported; only 'silu' is")
    if config.mlp_bias:
        raise _Unsupported("mlp_bias is not supported")
    if config.quantization_config is not None:
        method = config.quantization_config.get("quant_method", "unnamed")
        raise _Unsupported(f"quantization_config ({method}) is not supported; use unquantised weights")
    heads = config.num_attention_heads
    kv_heads = config.num_key_value_heads or heads
    if heads % kv_heads:
        raise _Unsupported(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    rope_theta, rope_scaling = _rope(config)
    return ModelConfig(
        architecture=architecture,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(config, family),
        norm_epsilon=config.rms_norm_eps,
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        max_position=config.max_position_embeddings,
        window_tokens=_window_tokens(config, family),
        tied_embeddings=config.tie_word_embeddings,
        qkv_bias=config.attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=config.attention_bias and family.qkv_bias is None,
        query_key_norm=family.query_key_norm,
        end_token_ids=end_token_ids,
    )


def _family(architectures: list[str]) -> tuple[str, Family]:
    for architecture in architectures:
        family = FAMILIES.get(architecture)
        if family is not None:
            return architecture, family
    known = ", ".join(FAMILIES)
    raise _Unsupported(f"architecture {', '.join(architectures) or '(none)'} is not one of {known}")


def _head_dim(config: _ConfigFile, family: Family) -> int:
    head_dim = config.head_dim or family.default_head_dim
    if head_dim is None:
        head_dim, rest = divmod(config.hidden_size, config.num_attention_heads)
        if rest:
            raise _Unsupported(
                f"hidden_size {config.hidden_size} is not a multiple of "
                f"num_attention_heads {config.num_attention_heads}, and head_dim is not given"
            )
    if head_dim % 2:
        raise _Unsupported(f"head_dim {head_dim} is odd; rotary positions need pairs")
    return head_dim


def _window_tokens(config: _ConfigFile, family: Family) -> int:
    if family.window == "none" or (family.window == "opt-in" and not config.use_sliding_window):
        return 0
    window = config.sliding_window
    if window is msgspec.UNSET:
        window = family.default_window_tokens
    if window is None:
        return 0
    kinds = set(_layer_types(config, family))
    if kinds == {"full_attention"}:
        return 0
    if kinds != {"sliding_attention"}:
        raise _Unsupported(f"layer_types {sorted(kinds)} in one model are not supported")
    return window


def _layer_types(config: _ConfigFile, family: Family) -> list[str]:
    if config.layer_types is not None:
        return config.layer_types
    if family.window == "always" or config.max_window_layers is None:
        return ["sliding_attention"]
    full_layers = min(max(config.max_window_layers, 0), config.num_hidden_layers)
    sliding_layers = config.num_hidden_layers - full_layers
    return ["full_attention"] * full_layers + ["sliding_attention"] * sliding_layers


def _rope(config: _ConfigFile) -> tuple[float, Llama3Scaling | None]:
    """Rotary base and scaling: transformers 5 has `rope_parameters`, 4 `rope_theta` and `rope_scaling`."""
    try:
        rope = msgspec.convert(config.rope_parameters or config.rope_scaling or {}, _RopeFields)
    except msgspec.ValidationError as error:
        raise _Unsupported(f"RoPE parameters: {error}") from None
    theta = rope.rope_theta or config.rope_theta or _DEFAULT_ROPE_THETA
    kind = rope.rope_type or rope.type or "default"
    if rope.partial_rotary_factor != 1.0:
        raise _Unsupported(f"partial_rotary_factor {rope.partial_rotary_factor} is not supported")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise _Unsupported(f"RoPE scaling {kind!r} is not supported; only 'llama3' is")
    if rope.factor is None or rope.low_freq_factor is None or rope.high_freq_factor is None:
        raise _Unsupported("RoPE scaling 'llama3' needs factor, low_freq_factor and high_freq_factor")
    if rope.high_freq_factor <= rope.low_freq_factor:
        raise _Unsupported("RoPE scaling 'llama3' needs high_freq_factor above low_freq_factor")
    original = rope.original_max_position_embeddings or config.max_position_embeddings
    return theta, Llama3Scaling(rope.factor, rope.low_freq_factor, rope.high_freq_factor, original)


def _end_token_ids(model_path: Path, config: _ConfigFile) -> tuple[int, ...]:
    """End tokens: `generation_config.json` takes precedence, as in transformers."""
    path = model_path / "generation_config.json"
    ids = _read(path, _GenerationFile).eos_token_id if path.is_file() else None
    if ids is None:
        ids = config.eos_token_id
    return known_end_tokens(ids, config.vocab_size)


def _read(path: Path, kind: type[_File]) -> _File:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ModelError(f"{path.name}: cannot be read ({error.strerror})") from error
    if len(raw) > MAX_CONFIG_BYTES:
        raise ModelError(f"{path.name}: is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNDECODABLE as error:
        raise ModelError(f"{path.name}: {error}") from error
