"""The tensors of a model folder's safetensors, single or sharded, as numpy arrays. Never pickle.

Every expected tensor must be present with its shape, and no other: a checkpoint that differs from its
`config.json` is refused by tensor name. No torch: its import takes longer than a small model's start.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from warmfleet_contracts.decoding import UNDECODABLE
from warmfleet_contracts.errors import ModelError
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.shapes import EMBEDDING, HEAD, expected_shapes

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024

_INDEX_FILE: Final = "model.safetensors.index.json"
_SINGLE_FILE: Final = "model.safetensors"
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""A table in old checkpoints; it follows from the configuration."""
_LENGTH_BYTES: Final = 8

AnyArray = NDArray[Any]

_FLOATS: Final = {
    "BF16": BFLOAT16,
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
"""By their names in the header."""


def open_checkpoint(model_path: Path, config: ModelConfig) -> "CheckpointReader":
    """Open a model folder whose tensors are those of `config`, by name.

    Its files are mapped until neither the reader nor one of its tensors is left.

    Raises:
        ModelError: A file or tensor is missing, unexpected or damaged; named.
    """
    checkpoint = _Checkpoint(model_path)
    expected = expected_shapes(config)
    _check_names(checkpoint, expected)
    if config.tied_embeddings and HEAD in checkpoint.names:
        _check_tied(checkpoint)
    return CheckpointReader(checkpoint, expected)


class CheckpointReader:
    """Expected tensors by their Hugging Face names. Made by `open_checkpoint`; several threads may read."""

    def __init__(self, checkpoint: "_Checkpoint", expected: Mapping[str, tuple[int, ...]]) -> None:
        self._checkpoint = checkpoint
        self._expected = expected

    def has(self, name: str) -> bool:
        """Whether a tensor belongs to the model."""
        return name in self._expected

    def tensor(self, name: str) -> AnyArray:
        """A tensor as the file holds it, in the file's own pages: bfloat16, float16, float32 or float64.

        Raises:
            ModelError: It has another shape, or holds no floats.
        """
        entry, expected = self._checkpoint.entry(name), self._expected[name]
        if entry.shape != expected:
            raise ModelError(
                f"{self.place_of(name)} has shape {list(entry.shape)}, "
                f"the configuration asks for {list(expected)}"
            )
        return self._checkpoint.tensor(name)

    def place_of(self, name: str) -> str:
        """File and name, as errors begin."""
        return f"{self._checkpoint.file_of(name)}: tensor {name}"

    def rows(self, *names: str) -> int:
        """Of the named tensors together."""
        return sum(self._expected[name][0] for name in names)


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

    def __init__(self, model_path: Path) -> None:
        index_path = model_path / _INDEX_FILE
        self.description = index_path.name if index_path.is_file() else _SINGLE_FILE
        self._shards: dict[str, str] = {}
        self._open: dict[str, _Shard] = {}
        indexed = _read_index(index_path) if index_path.is_file() else None
        for file_name in sorted(set(indexed.values())) if indexed is not None else [_SINGLE_FILE]:
            shard = self._open[file_name] = _Shard(model_path / file_name)
            for name in shard.entries:
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

    def entry(self, name: str) -> "_Entry":
        return self._open[self._shards[name]].entries[name]

    def tensor(self, name: str) -> AnyArray:
        return self._open[self._shards[name]].tensor(name)


class _Entry(msgspec.Struct, frozen=True):
    """Of a tensor, in a file's header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Shard:
    """One safetensors file, mapped: `safe_open` would copy each tensor.

    The format: 8 bytes with the header's length, the header as JSON, and what `data_offsets` count in.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        try:
            with safe_open(path, framework="np"):
                pass  # it has checked that every tensor of the header lies in the file, and has its size
            # A private mapping that may be written, which nothing does: torch warns of others.
            self._bytes: AnyArray = np.memmap(path, np.uint8, mode="c")
            self._data = _LENGTH_BYTES + int.from_bytes(self._bytes[:_LENGTH_BYTES].tobytes(), "little")
            header = msgspec.json.decode(
                self._bytes[_LENGTH_BYTES : self._data].tobytes(), type=dict[str, msgspec.Raw]
            )
            header.pop("__metadata__", None)
            self.entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in header.items()}
        except FileNotFoundError as error:
            raise ModelError(f"{path.name}: is missing") from error
        except (SafetensorError, OSError, ValueError, *UNDECODABLE) as error:
            raise ModelError(f"{path.name}: is not a readable safetensors file ({error})") from error

    def tensor(self, name: str) -> AnyArray:
        entry = self.entries[name]
        dtype = _FLOATS.get(entry.dtype)
        if dtype is None:
            raise ModelError(f"{self._name}: tensor {name} holds {entry.dtype}, not floats of 16 to 64 bits")
        start, end = (self._data + offset for offset in entry.data_offsets)
        try:
            return np.frombuffer(self._bytes[start:end], dtype).reshape(entry.shape)
        except ValueError as error:  # it has changed since it was opened
            raise ModelError(f"{self._name}: tensor {name} cannot be read ({error})") from error


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
