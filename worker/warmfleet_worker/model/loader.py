"""Weights from safetensors, single or sharded, into the fused layout of the decoder. Never pickle.

Every expected tensor must be present with its shape, and no other: a checkpoint that differs from its
`config.json` is refused by tensor name.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import ModelError
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.int8 import Int8Matrix, NotQuantisable, quantised, stacked
from warmfleet_worker.model.layers import Linear, RmsNorm
from warmfleet_worker.model.rope import RotaryTable
from warmfleet_worker.model.shapes import EMBEDDING, FINAL_NORM, HEAD, expected_shapes
from warmfleet_worker.model.transformer import Decoder, DecoderLayer

MAX_INDEX_BYTES: Final = 64 * 1024 * 1024

_INDEX_FILE: Final = "model.safetensors.index.json"
_SINGLE_FILE: Final = "model.safetensors"
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""A table in old checkpoints; it follows from the configuration."""


def load_decoder(
    model_path: Path, config: ModelConfig, *, positions: int, dtype: torch.dtype, device: torch.device
) -> Decoder:
    """Load the weights of a model folder as `dtype` onto `device`.

    `positions` is the longest sequence that will be run; it sizes the table of rotations.

    Raises:
        ModelError: A file or tensor is missing, unexpected, damaged or misshapen; named.
    """
    with open_checkpoint(model_path, config, dtype=dtype, device=device) as reader:
        embedding = reader.embedding()
        return Decoder(
            config=config,
            embedding=embedding,
            layers=tuple(reader.layer(index) for index in range(config.layers)),
            final_norm=reader.final_norm(),
            head=Linear(embedding) if config.tied_embeddings else reader.head(),
            rotary=RotaryTable(config, positions, dtype, device),
        )


@contextmanager
def open_checkpoint(
    model_path: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device
) -> Iterator["CheckpointReader"]:
    """Open a model folder whose tensors are those of `config`, by name.

    Raises:
        ModelError: A file or tensor is missing, unexpected or damaged; named.
    """
    with ExitStack() as files:
        checkpoint = _Checkpoint(model_path, files)
        expected = expected_shapes(config)
        _check_names(checkpoint, expected)
        if config.tied_embeddings and HEAD in checkpoint.names:
            _check_tied(checkpoint)
        yield CheckpointReader(config, _Weights(checkpoint, expected, dtype, device))


class CheckpointReader:
    """Reads the parts of a decoder, each into memory of its own. Made by `open_checkpoint`.

    Each method raises ModelError where a tensor cannot be read or has another shape.
    """

    def __init__(self, config: ModelConfig, weights: "_Weights") -> None:
        self._config = config
        self._weights = weights

    def has(self, name: str) -> bool:
        """Whether a tensor belongs to the model."""
        return name in expected_shapes(self._config)

    def stack(self, *names: str) -> Tensor:
        """Tensors below each other, as one, by their Hugging Face names."""
        return self._weights.stack(*names)

    def int8(self, *names: str) -> Int8Matrix:
        """Matrices below each other in eight bits, rounded from what the file holds."""
        return stacked([self._weights.int8(name) for name in names])

    def embedding(self) -> Tensor:
        """[vocabulary, hidden]."""
        return self._weights.stack(EMBEDDING)

    def final_norm(self) -> RmsNorm:
        return RmsNorm(self._weights.stack(FINAL_NORM), self._config.norm_epsilon)

    def head(self) -> Linear:
        """The embedding where the two are tied."""
        return Linear(self._weights.stack(EMBEDDING if self._config.tied_embeddings else HEAD))

    def layer(self, index: int) -> DecoderLayer:
        config, weights = self._config, self._weights
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return DecoderLayer(
            input_norm=self._norm(f"{prefix}.input_layernorm"),
            qkv=weights.linear(
                f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj", bias=config.qkv_bias
            ),
            query_norm=self._norm(f"{attention}.q_norm") if config.query_key_norm else None,
            key_norm=self._norm(f"{attention}.k_norm") if config.query_key_norm else None,
            output=weights.linear(f"{attention}.o_proj", bias=config.output_bias),
            mlp_norm=self._norm(f"{prefix}.post_attention_layernorm"),
            gate_up=weights.linear(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=weights.linear(f"{mlp}.down_proj"),
        )

    def _norm(self, name: str) -> RmsNorm:
        return RmsNorm(self._weights.stack(f"{name}.weight"), self._config.norm_epsilon)


def _check_names(checkpoint: "_Checkpoint", expected: Mapping[str, tuple[int, ...]]) -> None:
    missing = sorted(expected.keys() - checkpoint.names)
    if missing:
        raise ModelError(f"{checkpoint.description}: tensor {_first_of(missing)} is missing")
    unexpected = sorted(
        name for name in checkpoint.names - expected.keys() - {HEAD} if not _DERIVED.fullmatch(name)
    )
    if unexpected:
        raise ModelError(
            f"{checkpoint.description}: tensor {_first_of(unexpected)} is not part of this architecture"
        )


def _check_tied(checkpoint: "_Checkpoint") -> None:
    if not torch.equal(checkpoint.tensor(HEAD), checkpoint.tensor(EMBEDDING)):
        raise ModelError(
            f"{checkpoint.file_of(HEAD)}: {HEAD} differs from {EMBEDDING}, "
            "but the configuration has tie_word_embeddings"
        )


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


class _Weights:
    """Reads expected tensors straight into their place in a fused one."""

    def __init__(
        self,
        checkpoint: "_Checkpoint",
        expected: Mapping[str, tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._checkpoint = checkpoint
        self._expected = expected
        self._dtype = dtype
        self._device = device

    def stack(self, *names: str) -> Tensor:
        """The named tensors below each other, as one."""
        shapes = [self._expected[name] for name in names]
        count = sum(shape[0] for shape in shapes)
        rows = torch.empty((count, *shapes[0][1:]), dtype=self._dtype, device=self._device)
        first = 0
        for name, shape in zip(names, shapes, strict=True):
            rows[first : first + shape[0]].copy_(self._read(name))
            first += shape[0]
        return rows

    def _read(self, name: str) -> Tensor:
        """A tensor as the file holds it, of its expected shape."""
        tensor, shape = self._checkpoint.tensor(name), self._expected[name]
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"{self._checkpoint.file_of(name)}: tensor {name} has shape {list(tensor.shape)}, "
                f"the configuration asks for {list(shape)}"
            )
        if not tensor.is_floating_point():
            raise ModelError(
                f"{self._checkpoint.file_of(name)}: tensor {name} holds {tensor.dtype}, not floats"
            )
        return tensor

    def int8(self, name: str) -> Int8Matrix:
        """One matrix in eight bits."""
        try:
            return quantised(self._read(name))
        except NotQuantisable as error:
            raise ModelError(f"{self._checkpoint.file_of(name)}: tensor {name}: {error}") from error

    def linear(self, *modules: str, bias: bool = False) -> Linear:
        """The named projections fused into one."""
        return Linear(
            self.stack(*(f"{module}.weight" for module in modules)),
            self.stack(*(f"{module}.bias" for module in modules)) if bias else None,
        )


class _Checkpoint:
    """The safetensors files of a model folder as one mapping of names to tensors."""

    def __init__(self, model_path: Path, files: ExitStack) -> None:
        index_path = model_path / _INDEX_FILE
        self.description = index_path.name if index_path.is_file() else _SINGLE_FILE
        self._shards: dict[str, str] = {}
        self._open: dict[str, Any] = {}
        indexed = _read_index(index_path) if index_path.is_file() else None
        for file_name in sorted(set(indexed.values())) if indexed is not None else [_SINGLE_FILE]:
            shard = _open_shard(model_path / file_name, files)
            self._open[file_name] = shard
            for name in shard.keys():  # noqa: SIM118 - not a mapping
                if name in self._shards:
                    raise ModelError(f"{file_name}: tensor {name} is in {self._shards[name]} too")
                self._shards[name] = file_name
        for name, file_name in (indexed or {}).items():
            if self._shards.get(name) != file_name:
                raise ModelError(f"{file_name}: tensor {name} is missing, {_INDEX_FILE} lists it")

    @property
    def names(self) -> set[str]:
        return set(self._shards)

    def file_of(self, name: str) -> str:
        return self._shards[name]

    def tensor(self, name: str) -> Tensor:
        file_name = self._shards[name]
        try:
            tensor: Tensor = self._open[file_name].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{file_name}: tensor {name} cannot be read ({error})") from error
        return tensor


def _open_shard(path: Path, files: ExitStack) -> Any:
    try:
        return files.enter_context(safe_open(path, framework="pt", device="cpu"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.name}: is missing") from error
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path.name}: is not a readable safetensors file ({error})") from error


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name to file name. File names stay inside the folder."""
    if path.stat().st_size > MAX_INDEX_BYTES:
        raise ModelError(f"{path.name}: is larger than {MAX_INDEX_BYTES} bytes")
    try:
        weight_map = msgspec.json.decode(path.read_bytes(), type=_IndexFile).weight_map
    except UNDECODABLE as error:
        raise ModelError(f"{path.name}: {error}") from error
    if not weight_map:
        raise ModelError(f"{path.name}: weight_map is empty")
    for file_name in sorted(set(weight_map.values())):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors", file_name):
            raise ModelError(f"{path.name}: {file_name!r} is not the name of a safetensors file")
    return weight_map


class _IndexFile(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]
