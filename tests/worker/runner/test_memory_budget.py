"""An engine that does not fit its memory is refused with the sizes, before its weights are read."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warmfleet_contracts.resources.engine_memory import EngineMemory, ModelSize, engine_memory
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_testing.engine.worker_process import running_worker
from warmfleet_worker.attention.kv_arena import KvArena
from warmfleet_worker.attention.torch_gather import TorchGatherAttention
from warmfleet_worker.kv_cache.layout import KvShape, kv_layout
from warmfleet_worker.runner import runner
from warmfleet_worker.runner.memory_budget import NotEnoughMemory, memory_refusal
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings

GIB = 2**30
SIZES = st.integers(0, 2**45)


def refusal_of(process=GIB // 4, weights=15 * GIB, arena=6 * GIB, workspace=GIB // 2, limit=16 * GIB):
    memory = EngineMemory(weights_bytes=weights, arena_bytes=arena, workspace_bytes=workspace)
    return memory_refusal(memory, process, limit)


def test_a_refusal_names_every_size_and_the_limit():
    words = refusal_of()

    assert "needs 21.8 GiB of memory and may use 16.0 GiB" in words
    assert "weights 15.0 GiB, KV cache 6.0 GiB" in words
    assert "attention workspace 512.0 MiB, the process itself 256.0 MiB" in words


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_an_engine_is_refused_exactly_when_the_sum_exceeds_the_limit(
    process, weights, arena, workspace, limit
):
    words = refusal_of(process, weights, arena, workspace, limit)

    assert bool(words) == (process + weights + arena + workspace > limit)


def test_the_workspace_alone_can_exceed_the_limit():
    fits = GIB // 4 + 21 * GIB
    assert not refusal_of(workspace=0, limit=fits)
    assert refusal_of(workspace=1, limit=fits)


@pytest.mark.parametrize("max_context_tokens", [16, 8192, 8193, 131_072])
def test_the_workspace_counts_what_attention_allocates(max_context_tokens):
    model = ModelSize(parameters=0, layers=2, kv_heads=2, head_dim=8, max_position_tokens=max_context_tokens)
    arena = KvArena(kv_layout(KvShape(2, 2, 8, 4), 16), 1, torch.float32, torch.device("cpu"))
    attention = TorchGatherAttention(arena, heads=4, window_tokens=0, max_context_tokens=max_context_tokens)

    counted = engine_memory(model, element_bytes=4, block_size_tokens=16, kv_cache_bytes=2**20)

    assert counted.workspace_bytes == attention._workspace.nbytes


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read(tmp_path, monkeypatch):
    folder = tiny_model_folder("llama", tmp_path)
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr("warmfleet_worker.runner.runner.has_gpu", lambda: False)
    monkeypatch.setattr(runner, "memory_limit_bytes", lambda: 64 * 2**20)

    with pytest.raises(NotEnoughMemory, match=r"may use 64\.0 MiB: .*KV cache 95"):
        load_runner(folder, RunnerSettings(kv_cache_bytes=100_000_000))


def test_a_worker_that_does_not_fit_ends_as_one_with_a_wrong_setting(tiny_served_path, tmp_path):
    left = tmp_path / "termination-log"
    left.touch()
    flags = ("--kv-cache-bytes", str(2**50), "--termination-message", str(left))

    with running_worker(tiny_served_path, *flags, wait=False) as worker:
        assert worker.process.wait(60) == 2
        assert "KV cache 1048576.0 GiB" in worker.wait_for_log("cannot serve this model")["reason"]
    assert left.read_text().startswith("cannot serve this model: the engine needs ")
