"""The functions of the native library, declared for ctypes as the headers in csrc have them."""

import ctypes
from collections.abc import Callable
from ctypes import (
    CDLL,
    POINTER,
    Array,
    Structure,
    byref,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_worker.native.build import (
    NativeStepUnavailable,
    compile_library,
    is_in_cache,
    library_path,
)
from warmfleet_worker.native.formats import KvElement, WeightFormat
from warmfleet_worker.native.layer_tensors import LAYER_TENSORS, MatrixShape
from warmfleet_worker.native.levels import Level

_STATUS: Final = {
    -1: "an argument is out of its range",
    -2: "there is not enough memory",
    -3: "a thread cannot be started",
    -4: "the level does not run on this processor, or not in this dtype",
    -5: "the system does not let this process use the level's registers",
}


class NativeStepError(WarmfleetError):
    """The native step refused its arguments, or could not be set up."""


_SIZES: Final = (
    "hidden intermediate layers heads kv_heads head_dim vocabulary "
    "window_tokens positions weight_format kv_element level threads"
)


class LayerStruct(Structure):
    """`wf_layer`."""

    _fields_ = [(tensor.name, c_void_p) for tensor in LAYER_TENSORS]


class ModelStruct(Structure):
    """`wf_model`."""

    _fields_ = [
        *((name, c_int32) for name in _SIZES.split()),
        ("norm_epsilon", c_float),
        ("block_size_tokens", c_int32),
        ("total_blocks", c_int32),
        *((f"{name}_stride_bytes", c_int64) for name in ("block", "layer", "value", "head")),
        *((name, c_void_p) for name in ("arena", "cosine", "sine", "embedding", "head", "final_norm")),
        ("layer", POINTER(LayerStruct)),
    ]


class StepStruct(Structure):
    """`wf_step_arguments`."""

    _fields_ = [
        ("rows", c_int32),
        ("chunks", c_int32),
        *((name, c_void_p) for name in ["token_ids", "positions", "row_chunks", "block_ids", "first_block"]),
        ("wanted", c_int32),
        *((name, c_void_p) for name in ["wanted_rows", "hidden", "finite", "trace"]),
    ]


class SamplingStruct(Structure):
    """`wf_sampling`."""

    _fields_ = [
        ("top_p", c_double),
        ("min_p", c_double),
        ("seed", c_uint64),
        ("temperature", c_float),
        ("top_k", c_int32),
        ("output_index", c_uint32),
        ("reserved", c_uint32),
    ]


class JobStruct(Structure):
    """`wf_job`."""

    _fields_ = [
        ("step", StepStruct),
        ("logits", c_void_p),
        ("sampling", POINTER(SamplingStruct)),
        ("token_ids", c_void_p),
        ("seconds", c_double),
    ]


class Handle:
    """Something that the library has made: it ends once, and what is asked of it then is refused."""

    def __init__(self, made: c_void_p, end: Callable[[int], None]) -> None:
        assert made.value
        self._address = made.value
        self._end = end

    @property
    def address(self) -> int:
        """Where it is.

        Raises:
            NativeStepError: It has ended.
        """
        if not self._address:
            raise NativeStepError("the native step: the model is closed")
        return self._address

    def close(self) -> None:
        """End it, if it has not."""
        if self._address:
            self._end(self._address)
        self._address = 0


class NativeLibrary:
    """The loaded library. `native_library()` gives the one of this process."""

    def __init__(self, path: Path) -> None:
        try:
            library = CDLL(str(path))
            self._declare_functions(library)
        except (OSError, AttributeError) as error:
            raise NativeStepUnavailable(f"the native step cannot be loaded: {error}") from error

    def _declare_functions(self, library: CDLL) -> None:
        self._level_computes = _declare(library, "wf_level_computes", c_int, c_int, c_int, c_int)
        self._request_permission = _declare(library, "wf_request_permission", c_int, c_int)
        self._packed_bytes = _declare(library, "wf_packed_bytes", c_int64, c_int, c_int64, c_int64, c_int)
        self._pack = _declare(
            library,
            "wf_pack",
            None,
            *(c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64, c_int, c_void_p),
        )
        self._map = _declare(library, "wf_map", c_void_p, c_int64)
        self._unmap = _declare(library, "wf_unmap", None, c_void_p, c_int64)
        self._engine_new = _declare(library, "wf_engine_new", c_int, POINTER(ModelStruct), POINTER(c_void_p))
        self._engine_free = _declare(library, "wf_engine_free", None, c_void_p)
        self._logits = _declare(library, "wf_logits", c_int, c_void_p, c_void_p, c_int32, c_void_p)
        self._stepper_new = _declare(library, "wf_stepper_new", c_int, c_void_p, POINTER(c_void_p))
        self._stepper_free = _declare(library, "wf_stepper_free", None, c_void_p)
        self._begin = _declare(library, "wf_begin", c_int, c_void_p, POINTER(JobStruct))
        self._finish = _declare(library, "wf_finish", c_int, c_void_p)
        self._sample = _declare(
            library,
            "wf_sample",
            c_int,
            *(c_void_p, c_void_p, c_int32, c_int32),
            POINTER(SamplingStruct),
            c_void_p,
        )

    def levels(
        self, weights: WeightFormat = WeightFormat.BF16, element: KvElement = KvElement.BF16
    ) -> tuple[Level, ...]:
        """The levels of this processor that compute with these, ascending; none without AVX2.

        Without arguments all that this processor runs, for every level computes in bfloat16.
        """
        return tuple(level for level in Level if self._level_computes(level, weights, element))

    def request_permission(self, level: Level) -> bool:
        """Ask the system to let this process use a level's registers, until it ends; whether it does.

        Stacks of signals have to be larger from then on.
        """
        return bool(self._request_permission(level))

    def packed_bytes(self, weights: WeightFormat, matrix: MatrixShape) -> int:
        return int(self._packed_bytes(weights, matrix.outputs, matrix.inputs, matrix.interleaved))

    def pack(  # noqa: PLR0917 - as the function has them
        self,
        weights: WeightFormat,
        values: int,
        scales: int,
        first: int,
        rows: int,
        matrix: MatrixShape,
        packed: int,
    ) -> None:
        """Pack `rows` outputs of a matrix, from output `first` on, into its zeroed memory at `packed`.

        Several threads may pack different rows at a time.

        Args:
            weights: what `values` are.
            values: their address, [rows, inputs].
            scales: of Int8 the address of float16, [rows, blocks]; else 0.
            first: output.
            rows: how many.
            matrix: the whole.
            packed: address of the whole.
        """
        shape = (matrix.outputs, matrix.inputs, matrix.interleaved)
        self._pack(weights, values, scales, first, rows, *shape, packed)

    def map(self, size_bytes: int) -> int:
        """Address of zeroed memory in huge pages.

        Raises:
            NativeStepError: There is none.
        """
        address = self._map(size_bytes)
        if not address:
            raise NativeStepError(f"{size_bytes} bytes of memory cannot be had")
        return int(address)

    def unmap(self, address: int, size_bytes: int) -> None:
        self._unmap(address, size_bytes)

    def new_engine(self, model: ModelStruct) -> Handle:
        """What computes. What `model` points to has to live as long."""
        engine = c_void_p()
        _check(self._engine_new(byref(model), byref(engine)))
        return Handle(engine, self._engine_free)

    def new_stepper(self, engine: Handle) -> Handle:
        """What `begin` and `finish` take. Closed before the engine; that waits for a step in flight."""
        stepper = c_void_p()
        _check(self._stepper_new(engine.address, byref(stepper)))
        return Handle(stepper, self._stepper_free)

    def begin(self, stepper: Handle, job: JobStruct) -> None:
        """Hand a step over and return; `job` and what it points to have to live until `finish`."""
        _check(self._begin(stepper.address, byref(job)))

    def finish(self, stepper: Handle) -> None:
        """Wait for the step in flight."""
        _check(self._finish(stepper.address))

    def logits(self, engine: Handle, hidden: int, rows: int, logits: int) -> None:
        _check(self._logits(engine.address, hidden, rows, logits))

    def sample(
        self, engine: Handle, logits: int, columns: int, sampling: "Array[SamplingStruct]", token_ids: int
    ) -> None:
        _check(self._sample(engine.address, logits, len(sampling), columns, sampling, token_ids))


@lru_cache(maxsize=1)
def native_library() -> NativeLibrary:
    """The library of this process, compiled if it is not yet.

    Raises:
        NativeStepUnavailable: It cannot be compiled or loaded, or this processor has none of its levels.
    """
    library = _loaded(library_path())
    if not library.levels():
        raise NativeStepUnavailable("the native step needs a processor with AVX2, FMA and F16C")
    return library


def _loaded(path: Path) -> NativeLibrary:
    """The library; compiled again if it is none, or of another system, as in a home that machines share."""
    try:
        return NativeLibrary(path)
    except NativeStepUnavailable:
        if not is_in_cache(path):
            raise
        compile_library(path)
        return NativeLibrary(path)


def _declare(library: CDLL, name: str, result: Any, *arguments: Any) -> "ctypes._NamedFuncPointer":
    function: ctypes._NamedFuncPointer = getattr(library, name)
    function.restype = result
    function.argtypes = arguments
    return function


def _check(status: int) -> None:
    if status:
        raise NativeStepError(f"the native step: {_STATUS.get(status, f'status {status}')}")
