"""Triton compiles every kernel for the GPUs that there are, whether or not one is here."""

import os
import subprocess
import sys

import pytest

from warmfleet_worker.gpu import kernels

KERNELS = {name for name in vars(kernels) if name.endswith("_kernel")}


@pytest.mark.parametrize("capability", [80, 86, 90], ids=["A100", "A10", "H100"])
def test_every_kernel_is_compiled_for_every_element(capability, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-m", "warmfleet_testing.gpu.compile_kernels", str(capability)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    compiled = {tuple(line.split()) for line in done.stdout.splitlines()}
    assert KERNELS
    assert compiled == {(name, element) for name in KERNELS for element in ("bf16", "fp16", "fp32")}
