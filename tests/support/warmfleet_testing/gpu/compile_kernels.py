"""python -m warmfleet_testing.gpu.compile_kernels CAPABILITY: compiles a GPU's kernels, without a GPU.

Prints a line for each; ends with the compiler's error. In a process of its own: in tests Triton interprets.
"""

import inspect
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from warmfleet_worker.gpu import kernels

SCALARS = {"epsilon": "fp32", "scale": "fp32"}
STRIDES = ("layer_begin", "block_stride", "value_stride", "head_stride")
INDICES = ("positions", "first_block", "block_ids")
PARTS = ("parts", "highest", "sums")
HEADS = {"head_dim": 128, "head_tile": 128}
SMALL_HEADS = {"head_dim": 24, "head_tile": 32}
CONTEXT: dict[str, Any] = {"block_size": 16, "tile": 64}
CASES: list[tuple[Any, dict[str, Any]]] = [
    *(
        (
            kernels.rotate_and_store_kernel,
            {
                "heads": 16, "kv_heads": 8, "head_dim": 2 * half, "half": half, "half_tile": 64,
                "block_size": 16, "has_norms": has_norms,
            },
        )
        for half, has_norms in ((64, True), (40, False))
    ),
    *(
        (
            kernels.attend_to_part_kernel,
            {
                "kv_heads": 8, "group": group, "group_tile": 16, **heads, **CONTEXT, "window": window,
                "splits": splits,
            },
        )
        for group, heads, window, splits in ((2, HEADS, 0, 32), (7, SMALL_HEADS, 4096, 1))
    ),
    *((kernels.merge_parts_kernel, {"heads": 16, **HEADS, "splits": splits}) for splits in (1, 32)),
    *(
        (kernels.add_and_normalise_kernel, {"hidden": 4096, "hidden_tile": 4096, "adds": adds})
        for adds in (True, False)
    ),
    (kernels.gated_kernel, {"intermediate": 3000, "tile": 1024}),
]  # fmt: skip


def compile_for(capability: int, element: str) -> None:
    """Compile every case with pointers to that element."""
    for kernel, constants in CASES:
        names = list(inspect.signature(kernel.fn).parameters)
        source = ASTSource(
            fn=kernel,
            signature={name: type_of(name, constants, element) for name in names},
            constexprs={(names.index(name),): value for name, value in constants.items()},
        )
        triton.compile(source, target=GPUTarget("cuda", capability, 32))
        sys.stdout.write(f"{kernel.fn.__name__} {element}\n")


def type_of(name: str, constants: dict[str, Any], element: str) -> str:
    """As Triton writes types."""
    if name in constants:
        return "constexpr"
    if name in STRIDES:
        return "i32"
    if name in SCALARS:
        return SCALARS[name]
    if name in INDICES:
        return "*i32"
    return "*fp32" if name in PARTS else f"*{element}"


if __name__ == "__main__":
    for element in ("bf16", "fp16", "fp32"):
        compile_for(int(sys.argv[1]), element)
