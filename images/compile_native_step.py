"""Compile the worker's native step into its package, for an image whose root is read-only: no arguments.

Runs while an image is built, in a stage that has a C compiler; the package is on the module path. On a
processor that the step is not for, nothing is done: PyTorch computes there.
"""

import platform
import sys

from warmfleet_worker.native.build import (
    NativeStepUnavailable,
    compile_library,
    library_beside,
    library_path,
)

if __name__ == "__main__":
    if platform.machine() != "x86_64":
        sys.exit(0)
    try:
        target = library_beside()
        compile_library(target)
        # The worker's own search must find this one, or it would look for a compiler.
        assert library_path() == target, library_path()
    except NativeStepUnavailable as error:
        sys.exit(f"error: {error}")
    target.chmod(0o644)
