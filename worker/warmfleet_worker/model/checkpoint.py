"""Reads the tensors of a model folder from safetensors, single or sharded, as numpy arrays. Never pickle.

Every expected tensor must be present with its shape, and no other: a checkpoint that differs from its
`config.json` is refused by tensor name. No torch: its import takes longer than a small model's start.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray
from safetensors import SafetensorError, safe_open

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import ModelError
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.int8 import Int8Matrix, NotQuantisable, quantised, stacked
from warmfleet_worker.model.shapes import EMBEDDING, HEAD, expected_shapes

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024

_INDEX_FILE: Final = "model.safetensors.index.json"
_SINGLE_FILE: Final = "model.safetensors"
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""A table in old checkpoints; it follows from the configuration."""
_FLOATS: Final = frozenset({"BF16", "F16", "F32", "F64"})

Array = NDArray[Any]


@contextmanager
def open_checkpoint(model_path: Path, config: ModelConfig) -> Iterator["CheckpointReader"]:
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
        yield CheckpointReader(checkpoint, expected)


class CheckpointReader:
    """Reads expected tensors by their Hugging Face names, each into memory of its own.

    Made by `open_checkpoint`. Each method raises ModelError where a tensor cannot be read, has another shape
    or holds no floats.
    """

    def __init__(self, checkpoint: "_Checkpoint", expected: Mapping[str, tuple[int, ...]]) -> None:
        self._checkpoint = checkpoint
        self._expected = expected

    def has(self, name: str) -> bool:
        """Whether a tensor belongs to the model."""
        return name in self._expected

    def tensor(self, name: str) -> Array:
        """A tensor as the file holds it: bfloat16, float16, float32 or float64."""
        dtype, shape = self._checkpoint.dtype_and_shape(name)
        if shape != self._expected[name]:
            raise ModelError(
                f"{self._checkpoint.file_of(name)}: tensor {name} has shape {list(shape)}, "
                f"the configuration asks for {list(self._expected[name])}"
            )
        if dtype not in _FLOATS:
            raise ModelError(f"{self._checkpoint.file_of(name)}: tensor {name} holds {dtype}, not floats")
        return self._checkpoint.tensor(name)

    def rows(self, *names: str) -> int:
        """Of the named tensors together."""
        return sum(self._expected[name][0] for name in names)

    def stack(self, *names: str, dtype: DTypeLike) -> Array:
        """The named tensors below each other, as one, rounded to `dtype`."""
        stack = np.empty((self.rows(*names), *self._expected[names[0]][1:]), dtype)
        first = 0
        for name in names:
            tensor = self.tensor(name)
            stack[first : first + tensor.shape[0]] = tensor
            first += tensor.shape[0]
        return stack

    def int8(self, *names: str) -> Int8Matrix:
        """Matrices below each other in eight bits, rounded from what the file holds."""
        return stacked([self._int8(name) for name in names])

    def _int8(self, name: str) -> Int8Matrix:
        try:
            return quantised(self.tensor(name))
        except NotQuantisable as error:
            raise ModelError(f"{self._checkpoint.file_of(name)}: tensor {name}: {error}") from error


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
    if not np.array_equal(checkpoint.tensor(HEAD), checkpoint.tensor(EMBEDDING)):
        raise ModelError(
            f"{checkpoint.file_of(HEAD)}: {HEAD} differs from {EMBEDDING}, "
            "but the configuration has tie_word_embeddings"
        )


def _first_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


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

    def dtype_and_shape(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Of the file's header; the dtype by its name there."""
        header = self._open[self._shards[name]].get_slice(name)
        return header.get_dtype(), tuple(header.get_shape())

    def tensor(self, name: str) -> Array:
        file_name = self._shards[name]
        try:
            tensor: Array = self._open[file_name].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{file_name}: tensor {name} cannot be read ({error})") from error
        return tensor


def _open_shard(path: Path, files: ExitStack) -> Any:
    try:
        return files.enter_context(safe_open(path, framework="np"))
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
