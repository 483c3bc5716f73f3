"""Whether the native step computes a model here, and at which level."""

from dataclasses import dataclass
from typing import Final

import structlog

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_worker.model.config import ModelConfig
from warmfleet_worker.native.build import NativeStepUnavailable
from warmfleet_worker.native.levels import Level
from warmfleet_worker.native.library import NativeLibrary, native_library
from warmfleet_worker.native.model import native_refusal
from warmfleet_worker.settings import CpuKernels

_LEVELS: Final = {"AVX2": Level.AVX2, "AVX512": Level.AVX512, "AVX512BF16": Level.AVX512_BF16}
_DTYPES: Final = frozenset({"Auto", "BFloat16", "Float32"})

_log = structlog.get_logger(__name__)


class KernelsNotAvailable(WarmfleetError):  # noqa: N818 - named after what is wrong
    """Kernels that were asked for by name do not run here."""


@dataclass(frozen=True, slots=True)
class NativeChoice:
    """The library and the level to run."""

    library: NativeLibrary
    level: Level


def choose_native(
    kernels: CpuKernels, dtype: str, config: ModelConfig, block_size_tokens: int
) -> NativeChoice | None:
    """The native step for a model on a CPU, or None: PyTorch computes it.

    Raises:
        KernelsNotAvailable: A level was asked for by name, and it cannot run here, or not this model.
    """
    if kernels == "Torch" or (kernels == "Auto" and dtype not in _DTYPES):
        return None
    try:
        library = _library_for(dtype, config, block_size_tokens)
    except NativeStepUnavailable as error:
        if kernels != "Auto":
            raise KernelsNotAvailable(f"{kernels} kernels: {error}") from error
        _log.warning("PyTorch computes: slower, and equal bits are not promised", reason=str(error))
        return None
    levels = library.levels()
    level = levels[-1] if kernels == "Auto" else _LEVELS[kernels]
    if level not in levels:
        raise KernelsNotAvailable(
            f"{kernels} kernels: this processor runs {', '.join(level.title for level in levels)}"
        )
    # Float32 has no use for units that multiply bfloat16: its bits are those of AVX-512.
    return NativeChoice(library, min(level, Level.AVX512) if dtype == "Float32" else level)


def _library_for(dtype: str, config: ModelConfig, block_size_tokens: int) -> NativeLibrary:
    if dtype not in _DTYPES:
        raise NativeStepUnavailable(f"the native step computes BFloat16 and Float32, not {dtype}")
    if refusal := native_refusal(config, block_size_tokens):
        raise NativeStepUnavailable(f"the native step cannot compute this model: {refusal}")
    return native_library()
