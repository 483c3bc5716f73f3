"""A captured graph computes what its kernels do one by one, after any other."""

import random

import pytest
import torch

from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.gpu.graph_rows import GRAPH_ROWS, graph_rows
from warmfleet_worker.gpu.graphs import DecodeGraphs
from warmfleet_worker.runner.memory_budget import NotEnoughMemory
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings

BLOCK = 4
CONTEXT_TOKENS = 300

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model on the device, with blocks for 128 sequences of some length."""
    folder = tiny_model_folder("qwen3", tmp_path_factory.mktemp("qwen3"))
    settings = RunnerSettings(
        kv_cache_bytes=2**22, dtype="Float32", block_size_tokens=BLOCK, max_model_length_tokens=CONTEXT_TOKENS
    )
    return load_runner(folder, settings).step_model


def decodes(lengths, blocks, seed):
    draw = random.Random(seed)
    free = list(range(blocks))
    draw.shuffle(free)
    return [
        Chunk(
            sequence,
            (draw.randrange(512),),
            length,
            tuple(free.pop() for _ in range(length // BLOCK + 1)),
            None,
        )
        for sequence, length in enumerate(lengths)
    ]


def test_a_model_on_a_gpu_has_them(model):
    assert model.kernels == "triton"


@pytest.mark.parametrize("count", [1, 2, 3, 9, 33, 128])
@torch.inference_mode()
def test_a_graph_computes_what_its_kernels_do(model, count):
    graphs = model._graphs
    # Long enough to be split among programs where few sequences share the cache.
    longest = min(CONTEXT_TOKENS, model.arena.total_blocks * BLOCK // count)
    for round_number in range(3):
        # Other lengths, tokens and blocks in each round: nothing of the one before may be left.
        draw = random.Random(100 * count + round_number)
        lengths = [draw.randrange(longest - BLOCK) for _ in range(count)]
        chunks = decodes(lengths, model.arena.total_blocks, seed=round_number)

        model.arena.storage.normal_(generator=torch.Generator("cuda").manual_seed(round_number))
        before = model.arena.storage.clone()
        expected = graphs.after_layers(chunks)[-1].clone()
        written = model.arena.storage.clone()
        model.arena.storage.copy_(before)
        hidden, logits = graphs.run(chunks, graph_rows(chunks))

        # A graph of more rows splits contexts among other programs.
        torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(model.arena.storage, written, rtol=0, atol=1e-4)
        torch.testing.assert_close(logits, model.logits(expected), rtol=0, atol=1e-3)


@torch.inference_mode()
def test_a_graph_is_replayed_after_every_other(model):
    graphs = model._graphs
    steps = [decodes([3] * rows, model.arena.total_blocks, seed=rows) for rows in GRAPH_ROWS]
    first = []
    for chunks in steps:
        model.arena.storage.zero_()
        first.append(graphs.run(chunks, len(chunks))[1].cpu())  # waits for it, as a step does
    for chunks, logits in reversed(list(zip(steps, first, strict=True))):
        model.arena.storage.zero_()
        assert torch.equal(graphs.run(chunks, len(chunks))[1].cpu(), logits)


def test_a_type_without_kernels_is_left_to_pytorch(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    runner = load_runner(folder, RunnerSettings(kv_cache_bytes=2**20, dtype="Float64"))
    assert runner.kernels == "torch"


def test_where_kernels_cannot_be_compiled_pytorch_computes(tmp_path, monkeypatch):
    def refuse(*_arguments, **_options):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(DecodeGraphs, "__init__", refuse)
    folder = tiny_model_folder("llama", tmp_path)
    runner = load_runner(folder, RunnerSettings(kv_cache_bytes=2**20, dtype="Float32"))
    assert runner.kernels == "torch"


def test_graphs_without_memory_are_a_refusal(tmp_path, monkeypatch):
    def refuse(*_arguments, **_options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(DecodeGraphs, "__init__", refuse)
    folder = tiny_model_folder("llama", tmp_path)
    with pytest.raises(NotEnoughMemory, match="a smaller KV cache is needed"):
        load_runner(folder, RunnerSettings(kv_cache_bytes=2**20, dtype="Float32"))
