"""The native step with AMX's tile registers in memory: any processor runs what is written with them."""

import tempfile
from functools import lru_cache
from pathlib import Path
from unittest.mock import patch

from warmfleet_worker.native import build
from warmfleet_worker.native.library import NativeLibrary


@lru_cache(maxsize=1)
def emulated_tiles() -> NativeLibrary:
    """A library whose level AMX_BF16 runs with AVX2; compiled once in this process."""
    flags = {"levels/amx_bf16.c": build.COMPILED["levels/avx2_bf16.c"]}
    # A loaded library needs no file.
    with tempfile.TemporaryDirectory() as folder, patch.dict(build.COMPILED, flags):
        library = Path(folder) / "library.so"
        build.compile_library(library, [*build.compiler(), "-DWF_EMULATED_TILES"])
        return NativeLibrary(library)
