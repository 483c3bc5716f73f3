"""A model's weights in the native step's layout: one region of huge pages, filled layer by layer.

Each layer's tensors are read, packed and dropped, so that loading needs the packed model and one layer.
"""

import math
from ctypes import Array, c_uint8
from typing import Final

import torch
from torch import Tensor

from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.layers import Linear, RmsNorm
from warmfleet_worker.model.loader import CheckpointReader
from warmfleet_worker.native.library import BF16, F32, LayerStruct, NativeLibrary, NativeStepError

_ALIGNMENT_BYTES: Final = 64
_TORCH_TYPES: Final = {BF16: torch.bfloat16, F32: torch.float32}


class Region:
    """A mapping in huge pages that hands out aligned pieces, front to back."""

    def __init__(self, library: NativeLibrary, size_bytes: int) -> None:
        self._library = library
        self.size_bytes = size_bytes
        self.address = library.map(size_bytes)
        self._used_bytes = 0

    def take(self, size_bytes: int) -> int:
        """Address of the next piece.

        Raises:
            NativeStepError: The region is too small for it.
        """
        start = _aligned(self._used_bytes)
        if start + size_bytes > self.size_bytes:
            raise NativeStepError(f"{size_bytes} bytes do not fit behind {start} of {self.size_bytes}")
        self._used_bytes = start + size_bytes
        return self.address + start

    def tensor(self, address: int, count: int, dtype: torch.dtype) -> Tensor:
        """`count` elements from `address` on, as a view."""
        buffer: Array[c_uint8] = (c_uint8 * (count * dtype.itemsize)).from_address(address)
        return torch.frombuffer(buffer, dtype=dtype)

    def free(self) -> None:
        """Unmap; views are invalid from then on."""
        if self.address:
            self._library.unmap(self.address, self.size_bytes)
            self.address = 0


class PackedWeights:
    """All weights of a model, packed: `layers`, `embedding`, `head`, `final_norm` are addresses in `region`.

    `embedding` is 0 where the embeddings are tied: its rows are read from the packed head.
    """

    def __init__(
        self, library: NativeLibrary, reader: CheckpointReader, config: ModelConfig, dtype: int
    ) -> None:
        self._library = library
        self._dtype = dtype
        self.region = Region(library, packed_model_bytes(library, config, dtype))
        try:
            self.layers = (LayerStruct * config.layers)(
                *(self._layer(reader, index) for index in range(config.layers))
            )
            self.final_norm = self._vector(reader.final_norm().weight)
            self.embedding = 0 if config.tied_embeddings else self._rows(reader.embedding())
            self.head = self._matrix(reader.head())
        except BaseException:
            self.region.free()
            raise

    def _layer(self, reader: CheckpointReader, index: int) -> LayerStruct:
        layer = reader.layer(index)
        return LayerStruct(
            input_norm=self._vector(layer.input_norm.weight),
            mlp_norm=self._vector(layer.mlp_norm.weight),
            query_norm=self._optional_norm(layer.query_norm),
            key_norm=self._optional_norm(layer.key_norm),
            qkv=self._matrix(layer.qkv),
            output=self._matrix(layer.output),
            gate_up=self._matrix(layer.gate_up, interleaved=True),
            down=self._matrix(layer.down),
            qkv_bias=self._optional(layer.qkv.bias),
            output_bias=self._optional(layer.output.bias),
        )

    def _matrix(self, linear: Linear, *, interleaved: bool = False) -> int:
        weight = linear.weight.to(_TORCH_TYPES[self._dtype]).contiguous()
        outputs, inputs = weight.shape
        packed = self.region.take(
            self._library.packed_bytes(self._dtype, outputs, inputs, interleaved=interleaved)
        )
        self._library.pack(self._dtype, weight.data_ptr(), outputs, inputs, packed, interleaved=interleaved)
        return packed

    def _rows(self, matrix: Tensor) -> int:
        return self._copy(matrix.to(_TORCH_TYPES[self._dtype]))

    def _vector(self, vector: Tensor) -> int:
        return self._copy(vector.to(torch.float32))

    def _optional(self, vector: Tensor | None) -> int:
        return 0 if vector is None else self._vector(vector)

    def _optional_norm(self, norm: RmsNorm | None) -> int:
        return 0 if norm is None else self._vector(norm.weight)

    def _copy(self, values: Tensor) -> int:
        address = self.region.take(values.nbytes)
        self.region.tensor(address, values.numel(), values.dtype).copy_(values.flatten())
        return address


def packed_model_bytes(library: NativeLibrary, config: ModelConfig, dtype: int) -> int:
    """Bytes of the whole packed model, alignment included."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    query = config.heads * config.head_dim
    qkv = query + 2 * config.kv_heads * config.head_dim

    def matrix(outputs: int, inputs: int) -> int:
        return _aligned(library.packed_bytes(dtype, outputs, inputs))

    gate_up = _aligned(library.packed_bytes(dtype, 2 * intermediate, hidden, interleaved=True))
    layer = matrix(qkv, hidden) + matrix(hidden, query) + gate_up + matrix(hidden, intermediate)
    vectors = [hidden, hidden, config.head_dim, config.head_dim, qkv, hidden]
    layer += sum(_aligned(4 * size) for size in vectors)
    rows = 0 if config.tied_embeddings else config.vocab_size * hidden * _TORCH_TYPES[dtype].itemsize
    return config.layers * layer + matrix(config.vocab_size, hidden) + _aligned(rows) + _aligned(4 * hidden)


def _aligned(size_bytes: int) -> int:
    return math.ceil(size_bytes / _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
