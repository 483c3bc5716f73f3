"""The KV cache as a share of a device's memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.errors import ModelError
from warmfleet_contracts.resources.engine_memory import EngineMemory
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.runner.memory_budget import (
    DeviceMemory,
    NotEnoughMemory,
    device_refusal,
    share_of_device_bytes,
)
from warmfleet_worker.runner.runner import NoDeviceMemory, load_runner
from warmfleet_worker.runner.runner_settings import KvCacheTooSmall, RunnerSettings
from warmfleet_worker.settings import parse_settings

GIB = 2**30


@pytest.mark.parametrize(
    ("percent", "free", "arena"),
    [(90, 80 * GIB, 72 * GIB), (90, 60 * GIB, 52 * GIB), (25, 60 * GIB, 0), (20, 60 * GIB, 0)],
)
def test_weights_and_cache_together_take_the_share(percent, free, arena):
    assert share_of_device_bytes(percent, DeviceMemory(total_bytes=80 * GIB, free_bytes=free)) == arena


def test_the_workspace_of_attention_belongs_to_the_share():
    memory = DeviceMemory(total_bytes=80 * GIB, free_bytes=80 * GIB)
    assert share_of_device_bytes(90, memory, workspace_bytes=2 * GIB) == 70 * GIB
    assert share_of_device_bytes(2, memory, workspace_bytes=2 * GIB) == 0


@given(st.integers(1, 95), st.integers(1, 2**40), st.data())
def test_the_cache_never_takes_more_than_is_free(percent, total, data):
    free = data.draw(st.integers(0, total))
    assert 0 <= share_of_device_bytes(percent, DeviceMemory(total, free)) <= free


def test_on_a_cpu_a_share_is_refused_before_the_weights_are_read(tmp_path, monkeypatch):
    folder = tiny_model_folder("llama", tmp_path)
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr("warmfleet_worker.runner.runner.has_gpu", lambda: False)
    with pytest.raises(NoDeviceMemory, match="needs a GPU"):
        load_runner(folder, RunnerSettings(kv_cache_bytes=1, device_memory_percent=50))


def test_a_device_that_the_weights_fill_has_no_room_for_a_block(tmp_path, monkeypatch):
    folder = tiny_model_folder("llama", tmp_path)
    with pytest.raises(KvCacheTooSmall, match="0 bytes is smaller than one block"):
        load_runner(folder, RunnerSettings(kv_cache_bytes=0))


def test_a_model_that_exceeds_a_devices_free_memory_is_refused_before_its_weights_are_read(
    tmp_path, monkeypatch
):
    folder = tiny_model_folder("llama", tmp_path)
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr("warmfleet_worker.runner.runner.has_gpu", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _device: (3 * GIB, 8 * GIB))

    with pytest.raises(
        NotEnoughMemory, match=r"5\.0 GiB of .*3\.0 GiB of 8\.0 GiB are free: weights 0\.6 MiB"
    ):
        load_runner(folder, RunnerSettings(kv_cache_bytes=5 * GIB, dtype="Float32"))
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load_runner(folder, RunnerSettings(kv_cache_bytes=2 * GIB, dtype="Float32"))


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40))
def test_an_engine_is_refused_exactly_when_it_exceeds_what_is_free(weights, arena, free):
    memory = EngineMemory(weights_bytes=weights, arena_bytes=arena, workspace_bytes=1)
    refusal = device_refusal(memory, DeviceMemory(total_bytes=2**41, free_bytes=free))
    assert bool(refusal) == (weights + arena + 1 > free)


def test_a_share_and_a_size_exclude_each_other(capsys):
    given = ["--model", "/m", "--device-memory-percent", "80"]
    assert parse_settings(given, {}).engine.device_memory_percent == 80
    for wrong in ([*given, "--kv-cache-bytes", "5"], ["--model", "/m", "--device-memory-percent", "96"]):
        with pytest.raises(SystemExit):
            parse_settings(wrong, {})
