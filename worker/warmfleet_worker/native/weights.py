"""A model's weights in the native step's layout: one region of huge pages, filled layer by layer.

Each layer's tensors are read, packed and dropped, so that loading needs the packed model and one layer.
"""

import math
from ctypes import c_uint8
from typing import Final

import numpy as np
from numpy.typing import DTypeLike

from warmfleet_worker.model.checkpoint import BFLOAT16, Array, CheckpointReader
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.shapes import EMBEDDING, FINAL_NORM, HEAD
from warmfleet_worker.native.formats import WeightFormat
from warmfleet_worker.native.layer_tensors import LAYER_TENSORS, MatrixShape
from warmfleet_worker.native.library import LayerStruct, NativeLibrary, NativeStepError

_ALIGNMENT_BYTES: Final = 64
_DTYPES: Final = {
    WeightFormat.BF16: BFLOAT16,
    WeightFormat.F32: np.dtype(np.float32),
    WeightFormat.INT8: np.dtype(np.float32),
}
"""To which weights are rounded, but for matrices that are quantised: those from what the file holds."""


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

    def view(self, address: int, size_bytes: int, dtype: DTypeLike) -> Array:
        """`size_bytes` from `address` on, as an array in this memory."""
        return np.frombuffer(memoryview((c_uint8 * size_bytes).from_address(address)), dtype)

    def free(self) -> None:
        """Unmap; views are invalid from then on."""
        if self.address:
            self._library.unmap(self.address, self.size_bytes)
            self.address = 0


class PackedWeights:
    """All weights of a model, packed: `layers`, `embedding`, `head`, `final_norm` are addresses in `region`.

    Where the embeddings are tied, `embedding` is `head`.
    """

    def __init__(
        self, library: NativeLibrary, reader: CheckpointReader, config: ModelConfig, weights: WeightFormat
    ) -> None:
        """Read and pack them.

        Raises:
            NativeStepError: There is no memory for them.
            ModelError: A tensor is missing, damaged, misshapen, or cannot be quantised.
        """
        self._library = library
        self._reader = reader
        self._format = weights
        self.region = Region(library, packed_model_bytes(library, config, weights))
        try:
            self.layers = (LayerStruct * config.layers)(
                *(self._layer(f"model.layers.{index}", config) for index in range(config.layers))
            )
            self.final_norm = self._vector((FINAL_NORM,))
            self.head = self._matrix((EMBEDDING if config.tied_embeddings else HEAD,), _vocabulary(config))
            self.embedding = (
                self.head if config.tied_embeddings else self._matrix((EMBEDDING,), _vocabulary(config))
            )
        except BaseException:
            self.region.free()
            raise

    def _layer(self, prefix: str, config: ModelConfig) -> LayerStruct:
        addresses = {}
        for tensor in LAYER_TENSORS:
            names, shape = tuple(f"{prefix}.{name}" for name in tensor.names), tensor.shape(config)
            if isinstance(shape, MatrixShape):
                addresses[tensor.name] = self._matrix(names, shape)
            elif self._reader.has(names[0]):
                addresses[tensor.name] = self._vector(names)
        return LayerStruct(**addresses)

    def _matrix(self, names: tuple[str, ...], shape: MatrixShape) -> int:
        packed = self.region.take(self._library.packed_bytes(self._format, shape))
        if self._format is WeightFormat.INT8:
            matrix = self._reader.int8(*names)
            values: Array = np.ascontiguousarray(matrix.values)
            scales = matrix.scales.ctypes.data
        else:
            values, scales = self._reader.stack(*names, dtype=_DTYPES[self._format]), 0
        assert values.shape == (shape.outputs, shape.inputs), (values.shape, shape)
        self._library.pack(self._format, values.ctypes.data, shape, packed, scales=scales)
        return packed

    def _vector(self, names: tuple[str, ...]) -> int:
        vector = self._reader.stack(*names, dtype=_DTYPES[self._format]).astype(np.float32)
        address = self.region.take(vector.nbytes)
        self.region.view(address, vector.nbytes, np.float32)[:] = vector
        return address


def packed_model_bytes(library: NativeLibrary, config: ModelConfig, weights: WeightFormat) -> int:
    """Bytes of the whole packed model, alignment included."""

    def tensor_bytes(shape: MatrixShape | int) -> int:
        return _aligned(library.packed_bytes(weights, shape) if isinstance(shape, MatrixShape) else 4 * shape)

    layer = sum(tensor_bytes(tensor.shape(config)) for tensor in LAYER_TENSORS)
    vocabulary = tensor_bytes(_vocabulary(config)) * (1 if config.tied_embeddings else 2)
    return config.layers * layer + vocabulary + tensor_bytes(config.hidden_size)


def _vocabulary(config: ModelConfig) -> MatrixShape:
    return MatrixShape(config.vocab_size, config.hidden_size)


def _aligned(size_bytes: int) -> int:
    return math.ceil(size_bytes / _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
