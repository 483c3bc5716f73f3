"""PyTorch, whose import takes seconds and half a gigabyte, is in an engine only where it computes.

Images for CPUs are without it: there a worker serves what the native step computes, and names the rest.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warmfleet_testing.engine.worker_process import TINY_NAME, running_worker, tiny_served_model
from warmfleet_worker.runner import device

REQUEST = {
    "model": TINY_NAME,
    "prompt": "hello, hello",
    "max_tokens": 8,
    "temperature": 0.8,
    "top_p": 0.9,
    "frequency_penalty": 0.5,
    "logit_bias": {"5": 2},
    "logprobs": 3,
    "echo": True,
    "ignore_eos": True,
}
"""What an engine does besides computing the model."""


NO_TORCH = "import sys\nsys.modules['torch'] = None\n"
"""As the first lines of a process: PyTorch is not found, and cannot be imported."""
NO_AVX2 = "import warmfleet_worker.native.library as l\nl.NativeLibrary.levels = lambda *_: ()\n"
ANOTHER_MACHINE = "import platform\nplatform.machine = lambda: 'aarch64'\n"
WHAT_TO_DO = "a worker image with PyTorch: worker-cpu built with the build argument TORCH_CPU_WHEEL=pinned"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_served_model(tmp_path_factory.mktemp("served"))


def libraries_of(pid: int) -> set[str]:
    """Files that a process has mapped, by their names."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {Path(line.split(maxsplit=5)[5]).name for line in lines if line.count("/")}


@pytest.mark.parametrize(
    ("flags", "has_torch"),
    [
        (("--dtype", "Auto"), False),
        (("--weight-quantization", "Int8"), False),
        (("--cpu-kernels", "Torch"), True),
    ],
)
def test_an_engine_that_serves_has_torch_only_where_it_computes(folder, flags, has_torch):
    with running_worker(folder, *flags) as worker, worker.client() as client:
        answer = client.post("/v1/completions", json=REQUEST).raise_for_status().json()

        libraries = libraries_of(worker.engine_pid)

    assert len(answer["choices"][0]["logprobs"]["tokens"]) == sum(
        answer["usage"][tokens] for tokens in ("prompt_tokens", "completion_tokens")
    )
    assert any(name.startswith("_multiarray_umath") for name in libraries)
    # Where there is a GPU's driver, PyTorch is asked for the GPU.
    assert any(name.startswith("libtorch") for name in libraries) == (has_torch or device.has_driver())


def test_torch_is_not_asked_for_a_gpu_where_no_driver_is(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "_AMD_DRIVER", tmp_path / "absent")
    monkeypatch.setattr(device, "_NVIDIA_DRIVER", "libabsent.so.1")
    monkeypatch.setattr("torch.cuda.is_available", lambda: pytest.fail("asked"))

    assert not device.has_gpu()


@pytest.mark.parametrize("answer", [False, True])
def test_torch_decides_where_a_driver_is(monkeypatch, tmp_path, answer):
    monkeypatch.setattr(device, "_AMD_DRIVER", tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: answer)

    assert device.has_gpu() is answer


@pytest.fixture
def without_torch(tmp_path):
    """Variables that processes, and their children, start with; `lines` run before their first module."""

    def variables(lines=""):
        (tmp_path / "sitecustomize.py").write_text(NO_TORCH + lines)
        return {"PYTHONPATH": str(tmp_path)}

    return variables


def refusal_of(model, without_torch, *flags, lines="", **variables):
    """Why a worker ends: the only line that it logs of that."""
    environment = without_torch(lines) | variables
    with running_worker(model, *flags, wait=False, environment=environment) as worker:
        code = worker.process.wait(60)
        (line,) = [line for line in worker.log_lines() if line["level"] in {"warning", "error"}]
        worker.errors.seek(0)
        assert "Traceback" not in worker.errors.read()
    return code, line["reason"]


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        (("--dtype", "Auto"), "BFloat16"),
        (("--dtype", "BFloat16"), "BFloat16"),
        (("--dtype", "Float32"), "Float32"),
        (("--dtype", "Auto", "--weight-quantization", "Int8"), "BFloat16"),
    ],
)
def test_without_torch_a_worker_serves_what_the_native_step_computes(folder, without_torch, flags, dtype):
    with running_worker(folder, *flags, environment=without_torch()) as worker, worker.client() as client:
        answer = client.post("/v1/completions", json=REQUEST).raise_for_status().json()
        cache = worker.cache()

    assert answer["usage"]["completion_tokens"] == REQUEST["max_tokens"]
    assert (cache["dtype"], cache["exact"]) == (dtype, True)


@pytest.mark.parametrize(
    ("flags", "lines", "reason"),
    [
        pytest.param(("--cpu-kernels", "Torch"), "", "CPU kernels Torch are asked for", id="kernels"),
        pytest.param(
            ("--dtype", "Float16"), "", "the native step computes BFloat16 and Float32, not Float16", id="16"
        ),
        pytest.param(
            ("--dtype", "Float64"), "", "the native step computes BFloat16 and Float32, not Float64", id="64"
        ),
        pytest.param(
            ("--dtype", "Auto"),
            NO_AVX2,
            "the native step needs a processor with AVX2, FMA and F16C",
            id="processor",
        ),
        pytest.param(
            ("--dtype", "Auto"),
            ANOTHER_MACHINE,
            "the native step is for x86-64, and this is aarch64",
            id="machine",
        ),
    ],
)
def test_without_torch_a_worker_names_why_torch_would_have_to_compute(
    folder, without_torch, flags, lines, reason
):
    code, stated = refusal_of(folder, without_torch, *flags, lines=lines)

    assert code == 2
    assert stated.startswith(f"{reason}, so PyTorch would have to compute, and it is not installed here")
    assert stated.endswith(WHAT_TO_DO)


def test_without_torch_and_a_compiled_library_a_worker_names_the_compiler(folder, without_torch, tmp_path):
    nothing = {"WARMFLEET_HOME": str(tmp_path / "home"), "CC": str(tmp_path / "no-compiler")}

    code, stated = refusal_of(folder, without_torch, **nothing)

    assert code == 2
    assert stated.startswith("the native step cannot be compiled into")
    assert "no-compiler" in stated
    assert stated.endswith(WHAT_TO_DO)


def test_without_torch_a_model_that_the_native_step_cannot_compute_is_named(without_torch, tmp_path):
    wide = tiny_served_model(
        tmp_path / "wide", hidden_size=1024, num_attention_heads=1, num_key_value_heads=1, head_dim=1024
    )

    code, stated = refusal_of(wide, without_torch)

    assert code == 2
    assert stated.startswith("the native step cannot compute this model: ")
    assert stated.endswith(WHAT_TO_DO)


def test_without_torch_quantised_weights_are_refused_for_what_the_native_step_lacks(folder, without_torch):
    _, stated = refusal_of(folder, without_torch, "--weight-quantization", "Int8", lines=NO_AVX2)

    assert "weight quantization Int8 is computed by the native step alone, and it does not compute" in stated
    assert stated.endswith("the native step needs a processor with AVX2, FMA and F16C")


@pytest.mark.parametrize(
    ("command", "code", "stated"),
    [
        (
            ["warmfleet_worker.roofline"],
            1,
            "error: PyTorch, whose products are measured, is not installed\n",
        ),
        (
            ["warmfleet_worker.parity", "--model", "any"],
            2,
            "PyTorch, which computes the reference, is not installed\n",
        ),
    ],
)
def test_a_command_that_computes_by_torch_names_it_where_it_is_not(without_torch, command, code, stated):
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, **without_torch()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (code, stated)


def test_the_code_that_fetches_and_converts_models_needs_no_torch(without_torch):
    modules = ("fetch", "model_store.catalog", "model_store.conversion", "model_store.fetch.command")
    script = f"import {', '.join(f'warmfleet_worker.{module}' for module in modules)}"
    subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **without_torch()},
        timeout=60,
        check=True,
    )


def test_no_gpu_computes_where_torch_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "_AMD_DRIVER", tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)

    assert not device.has_gpu()


def test_an_engine_by_pytorch_imports_neither_its_compiler_nor_triton():
    script = (
        "import sys; from warmfleet_worker.runner.runner import import_libraries; "
        "import_libraries('Torch', 'Float32'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    imported = set(done.stdout.split())
    assert "torch" in imported
    assert imported.isdisjoint({"torch._dynamo", "triton", "sympy"})
