"""python -m warmfleet_testing.gpu.compile_kernels CAPABILITY: compiles a GPU's kernels, without a GPU.

Prints a line for each; ends with the compiler's error. In a process of its own: in tests Triton interprets.
"""

import inspect
import sys
from itertools import product
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from warmfleet_worker.gpu import kernels
from warmfleet_worker.gpu.launches import head_tile_of, program_size, query_tile_tokens
from warmfleet_worker.kv_cache.layout import KvShape

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
SCALARS = {"epsilon": "fp32", "scale": "fp32"}
STRIDES = ("layer_begin", "block_stride", "value_stride", "head_stride")
PARTS = ("parts", "highest", "sums")
ALIGNED = (*STRIDES, *PARTS, "query", "storage", "out")
HEADS = {"head_dim": 128, "head_tile": 128}
SHARED_KIB = {80: 163, 86: 99, 90: 227}
"""That a program may have, by a GPU's capability (CUDA C++ Programming Guide, technical specifications)."""
Case = tuple[Any, dict[str, Any], dict[str, Any]]


def attend_cases(element_bytes: int) -> list[Case]:
    """Attention with the sizes that launches take."""
    cases: list[Case] = []
    for group, head_dim, window in ((2, 128, 0), (7, 24, 4096), (1, 256, 0)):
        head_tile = head_tile_of(head_dim)
        for one_token, is_split in product((True, False), repeat=2):
            size = program_size(head_tile, element_bytes, one_token=one_token)
            shape = KvShape(layers=1, kv_heads=8, head_dim=head_dim, element_bytes=element_bytes)
            most_tokens = 1 if one_token else query_tile_tokens(8 * group, shape)
            constants = {
                "kv_heads": 8, "group": group, "group_tile": size.query_rows // most_tokens,
                "most_tokens": most_tokens, "head_dim": head_dim, "head_tile": head_tile, "block_size": 16,
                "context_tile": size.context_tokens, "window": window, "is_split": is_split,
            }  # fmt: skip
            cases.append((kernels.attend_kernel, constants, {}))
    return cases


OTHER_CASES: list[Case] = [
    *(
        (
            kernels.rotate_and_store_kernel,
            {
                "heads": 16, "kv_heads": 8, "head_dim": 2 * half, "half": half, "half_tile": 64,
                "block_size": 16, "has_norms": has_norms,
            },
            {"num_warps": 1},
        )
        for half, has_norms in ((64, True), (40, False))
    ),
    (kernels.merge_parts_kernel, {"heads": 16, **HEADS, "most_splits": 32}, {}),
    *(
        (kernels.add_and_normalise_kernel, {"hidden": 4096, "hidden_tile": 4096, "adds": adds}, {})
        for adds in (True, False)
    ),
    (kernels.gated_kernel, {"intermediate": 3000, "tile": 1024}, {}),
]  # fmt: skip


def compile_for(capability: int, element: str) -> None:
    """Compile every case with pointers to that element, aligned as launches have them."""
    for kernel, constants, options in [*attend_cases(ELEMENT_BYTES[element]), *OTHER_CASES]:
        names = list(inspect.signature(kernel.fn).parameters)
        source = ASTSource(
            fn=kernel,
            signature={name: type_of(name, constants, element) for name in names},
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in names if name in ALIGNED},
        )
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        shared = compiled.metadata.shared
        assert shared <= SHARED_KIB[capability] * 1024, (kernel.fn.__name__, element, constants, shared)
        sys.stdout.write(f"{kernel.fn.__name__} {element}\n")


def type_of(name: str, constants: dict[str, Any], element: str) -> str:
    """As Triton writes types."""
    if name in constants:
        return "constexpr"
    if name in STRIDES or name == "splits":
        return "i32"
    if name in SCALARS:
        return SCALARS[name]
    if name in kernels.CHANGING:
        return "*i32"
    return "*fp32" if name in PARTS else f"*{element}"


if __name__ == "__main__":
    for element in ELEMENT_BYTES:
        compile_for(int(sys.argv[1]), element)
