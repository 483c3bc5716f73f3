"""The worker's requirements for an image that computes on CPUs, or that computes nothing.

`cpu_requirements.py REQUIREMENTS TORCH` prints them. TORCH is

- empty: no PyTorch on x86-64, where the native step computes; elsewhere PyTorch as it is pinned
- `pinned`: PyTorch as it is pinned, with CUDA
- `none`: no PyTorch anywhere; beside vLLM only the server runs, which computes nothing
- `https://...whl#sha256=...`: this wheel of PyTorch, one without CUDA; it is hash-checked, and no index is
  in the tree

Without PyTorch all goes that nothing but PyTorch needs: `uv pip compile` notes below each requirement what
needs it. Runs while an image is built: standard library only.
"""

import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NATIVE_STEP_MACHINE: Final = "x86_64"
_PINNED: Final = "pinned"
_NO_TORCH: Final = "none"
_CUDA_ONLY: Final = re.compile(r"torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+")
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*(?===)")
_NEEDED_BY: Final = re.compile(r"^    # (?:via |  )([a-z0-9][a-z0-9._-]*)", re.MULTILINE)
_WHEEL: Final = re.compile(r"https?://\S+\.whl#sha256=[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class _Requirement:
    name: str
    needed_by: frozenset[str]
    text: str
    """With its hashes and notes."""


def cpu_requirements(pinned: str, torch: str, machine: str) -> str:
    """Requirements in pip's format, with PyTorch as `torch` has it, for a processor of the type `machine`.

    Raises:
        ValueError: `torch` is none of what it may be, or `pinned` does not note what needs what.
    """
    if torch == _PINNED or (not torch and machine != _NATIVE_STEP_MACHINE):
        return pinned
    requirements = list(_requirements(pinned))
    if torch in {"", _NO_TORCH}:
        return "".join(requirement.text for requirement in _without_torch(requirements))
    if _WHEEL.fullmatch(torch) is None:
        raise ValueError(
            f"TORCH_CPU_WHEEL: expected nothing, {_PINNED}, {_NO_TORCH} or "
            f"https://...whl#sha256=<64 hex digits>, got {torch!r}"
        )
    kept = [requirement.text for requirement in requirements if not _CUDA_ONLY.fullmatch(requirement.name)]
    return "".join([*kept, f"torch @ {torch}\n"])


def _without_torch(requirements: list[_Requirement]) -> list[_Requirement]:
    """Those that something else needs than torch, and than what goes with it."""
    if bare := [requirement.name for requirement in requirements if not requirement.needed_by]:
        raise ValueError(f"no note names what needs {', '.join(bare)}: run `make constraints`")
    gone = {"torch"}
    while True:
        kept = [
            requirement
            for requirement in requirements
            if requirement.name not in gone and requirement.needed_by - gone
        ]
        left = {requirement.name for requirement in requirements} - {requirement.name for requirement in kept}
        if left == gone:
            return kept
        gone = left


def _requirements(pinned: str) -> Iterator[_Requirement]:
    text = ""
    for line in [*pinned.splitlines(keepends=True), ""]:
        if text and not line.startswith((" ", "\t")):
            if name := _NAME.match(text):
                yield _Requirement(name[0], _needed_by(text), text)
            text = ""
        text += line


def _needed_by(text: str) -> frozenset[str]:
    return frozenset(_NEEDED_BY.findall(text))


if __name__ == "__main__":
    try:
        text = Path(sys.argv[1]).read_text(encoding="utf-8")
        sys.stdout.write(cpu_requirements(text, sys.argv[2], platform.machine()))
    except ValueError as error:
        sys.exit(f"error: {error}")
