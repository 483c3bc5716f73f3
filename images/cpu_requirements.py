"""The worker's requirements with a torch wheel that has no CUDA, for the CPU image, or without torch.

`cpu_requirements.py REQUIREMENTS WHEEL` prints them. WHEEL is a URL with `#sha256=...`, so that the wheel
stays hash-checked without an index in the tree; empty leaves everything as it is. `none` leaves torch out:
beside vLLM only the server runs, which computes nothing. Runs while an image is built: standard library only.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

_CUDA_ONLY = re.compile(r"(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==")
_NO_TORCH = "none"
_WHEEL = re.compile(r"https?://\S+\.whl#sha256=[0-9a-f]{64}")


def without_cuda(requirements: str, wheel: str) -> str:
    """Requirements in pip's format, with `wheel` in place of torch and of what only CUDA needs.

    Raises:
        ValueError: `wheel` is neither empty nor `none` nor a URL with its hash.
    """
    if not wheel:
        return requirements
    if wheel != _NO_TORCH and _WHEEL.fullmatch(wheel) is None:
        raise ValueError(f"TORCH_CPU_WHEEL: expected https://...whl#sha256=<64 hex digits>, got {wheel!r}")
    kept = [block for block in _blocks(requirements) if _CUDA_ONLY.match(block) is None]
    return "".join(kept if wheel == _NO_TORCH else [*kept, f"torch @ {wheel}\n"])


def _blocks(requirements: str) -> Iterator[str]:
    """One requirement with its hashes each."""
    block = ""
    for line in requirements.splitlines(keepends=True):
        if block and not line.startswith((" ", "\t")):
            yield block
            block = ""
        block += line
    yield block


if __name__ == "__main__":
    try:
        sys.stdout.write(without_cuda(Path(sys.argv[1]).read_text(encoding="utf-8"), sys.argv[2]))
    except ValueError as error:
        sys.exit(f"error: {error}")
