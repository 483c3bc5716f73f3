"""A model's weights in the native step's layout: one region of huge pages, filled by all threads.

They pack pieces of a few megabytes from the mapped files, so that loading needs the packed model and little
besides.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_uint8
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from warmfleet_contracts.errors import ModelError
from warmfleet_worker.model.checkpoint import AnyArray, CheckpointReader
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.model.int8 import NotQuantisable, quantised
from warmfleet_worker.model.shapes import EMBEDDING, FINAL_NORM, HEAD
from warmfleet_worker.native.formats import ROUNDED_TO, WeightFormat
from warmfleet_worker.native.layer_tensors import LAYER_TENSORS, MatrixShape
from warmfleet_worker.native.library import LayerStruct, NativeLibrary, NativeStepError

_ALIGNMENT_BYTES: Final = 64
_MAX_THREADS: Final = 16
"""More would not read faster, and each has a piece in memory."""
_PIECE_WEIGHTS: Final = 2**19
"""Packed at a time by a thread; rounding to eight bits takes some 14 bytes of each besides."""


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

    def view(self, address: int, size_bytes: int, dtype: DTypeLike) -> AnyArray:
        """`size_bytes` from `address` on, as an array in this memory."""
        return np.frombuffer(memoryview((c_uint8 * size_bytes).from_address(address)), dtype)

    def free(self) -> None:
        """Unmap; views are invalid from then on."""
        if self.address:
            self._library.unmap(self.address, self.size_bytes)
            self.address = 0


class _Piece(NamedTuple):
    """Some outputs of a matrix that is to be packed."""

    name: str
    first: int
    """Of the whole matrix."""
    weights: AnyArray
    """[rows, inputs], as the file holds them."""
    shape: MatrixShape
    """Of the whole."""
    address: int
    """Of the whole, packed."""


class PackedWeights:
    """All weights of a model, packed: `layers`, `embedding`, `head`, `final_norm` are addresses in `region`.

    Where the embeddings are tied, `embedding` is `head`.
    """

    def __init__(
        self,
        library: NativeLibrary,
        reader: CheckpointReader,
        config: ModelConfig,
        weights: WeightFormat,
        *,
        threads: int,
    ) -> None:
        """Read and pack them.

        Raises:
            NativeStepError: There is no memory for them.
            ModelError: A tensor is missing, damaged, misshapen, or cannot be quantised.
        """
        self._library = library
        self._reader = reader
        self._format = weights
        self._pieces: list[_Piece] = []
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
            with ThreadPoolExecutor(min(threads, _MAX_THREADS)) as pool:
                try:
                    for _ in pool.map(self._pack, self._pieces):
                        pass
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        except BaseException:
            self.region.free()
            raise
        finally:
            del self._reader, self._pieces  # with them go the mappings of the files

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
        """Where the named tensors, below each other, will be packed."""
        address = self.region.take(self._library.packed_bytes(self._format, shape))
        rows = max(_PIECE_WEIGHTS // shape.inputs, 1)
        first = 0
        for name in names:
            tensor = self._reader.tensor(name)
            for start in range(0, tensor.shape[0], rows):
                part = tensor[start : start + rows]
                self._pieces.append(_Piece(name, first, part, shape, address))
                first += part.shape[0]
        assert first == shape.outputs, (names, shape)
        return address

    def _pack(self, piece: _Piece) -> None:
        scales = 0
        if self._format is WeightFormat.INT8:
            try:
                matrix = quantised(piece.weights)
            except NotQuantisable as error:
                raise ModelError(f"{self._reader.place_of(piece.name)}: {error}") from error
            values, scales = matrix.values, matrix.scales.ctypes.data
        else:
            # A copy where it is rounded, or where the file does not align it.
            values = np.require(piece.weights, ROUNDED_TO[self._format], ["C_CONTIGUOUS", "ALIGNED"])
        self._library.pack(
            self._format,
            values.ctypes.data,
            scales,
            piece.first,
            values.shape[0],
            piece.shape,
            piece.address,
        )

    def _vector(self, names: tuple[str, ...]) -> int:
        rounded = [self._reader.tensor(name).astype(ROUNDED_TO[self._format]) for name in names]
        vector = np.concatenate(rounded).astype(np.float32)
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
