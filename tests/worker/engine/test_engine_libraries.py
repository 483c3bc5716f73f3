"""PyTorch, whose import takes seconds and half a gigabyte, is in an engine only where it computes."""

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
