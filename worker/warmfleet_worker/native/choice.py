"""Whether the native step computes a model here, and at which level."""

from dataclasses import dataclass
from typing import Final

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.native.build import NativeStepUnavailable
from warmfleet_worker.native.formats import ELEMENTS, UNQUANTISED, KvElement, WeightFormat
from warmfleet_worker.native.levels import Level
from warmfleet_worker.native.library import NativeLibrary, native_library
from warmfleet_worker.native.model import native_refusal
from warmfleet_worker.settings import CpuKernels, WeightQuantization

_LEVELS: Final = {level.option: level for level in Level}


class KernelsNotAvailable(WarmfleetError):  # noqa: N818 - named after what is wrong
    """Kernels that were asked for by name do not run here."""


@dataclass(frozen=True, slots=True)
class NativeChoice:
    """The library, and what to run of it."""

    library: NativeLibrary
    level: Level
    weight_format: WeightFormat
    kv_element: KvElement
    not_permitted: Level | None = None
    """The level that this processor would run, if the system had let this process."""


@dataclass(frozen=True, slots=True)
class NotNative:
    """PyTorch has to compute."""

    reason: str


def torch_by_settings(kernels: CpuKernels, dtype: str) -> str:
    """Why PyTorch has to compute on any CPU and any model; "" if the native step may."""
    if kernels == "Torch":
        return "CPU kernels Torch are asked for"
    if kernels == "Auto" and dtype not in ELEMENTS:
        return _other_dtype(dtype)
    return ""


def choose_native(
    kernels: CpuKernels,
    dtype: str,
    config: ModelConfig,
    block_size_tokens: int,
    weight_quantization: WeightQuantization = "None",
) -> NativeChoice | NotNative:
    """The native step for a model on a CPU, or why it does not compute it.

    Raises:
        KernelsNotAvailable: A level was asked for by name, and it cannot run here, or not this model.
    """
    if reason := torch_by_settings(kernels, dtype):
        return NotNative(reason)
    try:
        library = _library_for(dtype, config, block_size_tokens)
    except NativeStepUnavailable as error:
        if kernels != "Auto":
            raise KernelsNotAvailable(f"{kernels} kernels: {error}") from error
        return NotNative(str(error))
    levels = library.levels()
    asked = max(levels) if kernels == "Auto" else _LEVELS[kernels]
    if asked not in levels:
        raise KernelsNotAvailable(
            f"{kernels} kernels: this machine runs {', '.join(level.option for level in levels)}"
        )
    element = ELEMENTS[dtype]
    weights = WeightFormat.INT8 if weight_quantization == "Int8" else UNQUANTISED[element]
    # A level that has no use for its units with these, as AVX-512-BF16 in Float32, is that of the one below.
    computing = [level for level in reversed(library.levels(weights, element)) if level <= asked]
    level = next(level for level in computing if library.request_permission(level))  # the last needs none
    best = computing[0]
    if level is best:
        return NativeChoice(library, best, weights, element)
    if kernels != "Auto":
        raise KernelsNotAvailable(f"{kernels} kernels: the system does not let this process use {best.title}")
    return NativeChoice(library, level, weights, element, not_permitted=best)


def _library_for(dtype: str, config: ModelConfig, block_size_tokens: int) -> NativeLibrary:
    if dtype not in ELEMENTS:
        raise NativeStepUnavailable(_other_dtype(dtype))
    if refusal := native_refusal(config, block_size_tokens):
        raise NativeStepUnavailable(f"the native step cannot compute this model: {refusal}")
    return native_library()


def _other_dtype(dtype: str) -> str:
    return f"the native step computes BFloat16 and Float32, not {dtype}"
