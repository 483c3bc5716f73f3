"""A captured graph computes what its kernels do one by one, after any other."""

import random

import pytest
import torch
import triton

from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine.batch import Chunk
from warmfleet_worker.gpu.step_shape import smallest_with_room, step_shape
from warmfleet_worker.gpu.steps import GpuSteps
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


def step(sequences, blocks, seed=0):
    """Chunks of (first position, tokens) in shuffled blocks."""
    draw = random.Random(seed)
    free = list(range(blocks))
    draw.shuffle(free)
    chunks = []
    for sequence, (first, count) in enumerate(sequences):
        own = tuple(free.pop() for _ in range(-(-(first + count) // BLOCK)))
        tokens = tuple(draw.randrange(512) for _ in range(count))
        chunks.append(Chunk(sequence, tokens, first, own, None))
    return chunks


def full(shape):
    """Chunks that fill a graph: decodes alone, or prompts."""
    if shape.tiles == 0:
        return [(3, 1)] * shape.singles
    return [(5, min(200, shape.rows - first)) for first in range(0, shape.rows, 200)]


def test_a_model_on_a_gpu_has_them(model):
    assert model.kernels == "triton"


@pytest.mark.parametrize(
    ("decodes", "prompts"),
    [
        (1, []),
        (2, []),
        (3, []),
        (9, []),
        (33, []),
        (128, []),
        (0, [2]),
        (0, [150, 37]),
        (5, [17]),
        (60, [40, 9, 3]),
    ],
    ids=str,
)
@torch.inference_mode()
def test_a_graph_computes_what_its_kernels_do(model, decodes, prompts):
    steps = model._steps
    # Long enough to be split among programs where few sequences share the cache.
    longest = min(CONTEXT_TOKENS, model.arena.total_blocks * BLOCK // (decodes + len(prompts)))
    for round_number in range(3):
        # Other lengths, tokens and blocks in each round: nothing of the one before may be left.
        draw = random.Random(100 * decodes + round_number)
        counts = [*prompts, *[1] * decodes]
        draw.shuffle(counts)
        sequences = [(draw.randrange(max(1, longest - count - BLOCK)), count) for count in counts]
        chunks = step(sequences, model.arena.total_blocks, seed=round_number)
        assert smallest_with_room(step_shape(chunks, steps._tile_tokens), steps._shapes)

        model.arena.storage.normal_(generator=torch.Generator("cuda").manual_seed(round_number))
        before = model.arena.storage.clone()
        expected = steps.after_layers(chunks)[-1]
        written = model.arena.storage.clone()
        model.arena.storage.copy_(before)
        rows = steps.rows(chunks)

        # A graph of more rows splits contexts among other programs.
        torch.testing.assert_close(rows.hidden, expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(model.arena.storage, written, rtol=0, atol=1e-4)
        assert (rows.logits is None) is bool(prompts)
        if rows.logits is not None:
            torch.testing.assert_close(rows.logits, model.logits(expected), rtol=0, atol=1e-3)


@torch.inference_mode()
def test_a_graph_is_replayed_after_every_other(model):
    shapes = model._steps._shapes
    steps = [step(full(shape), model.arena.total_blocks, seed=shape.rows) for shape in shapes]
    first = []
    for chunks in steps:
        model.arena.storage.zero_()
        first.append(model._steps.rows(chunks).hidden.cpu())  # waits for it, as a step does
    for chunks, hidden in reversed(list(zip(steps, first, strict=True))):
        model.arena.storage.zero_()
        assert torch.equal(model._steps.rows(chunks).hidden.cpu(), hidden)


def test_no_step_compiles_a_kernel(model, monkeypatch):
    compiled = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_post_compile_hook", lambda **some: compiled.append(some["fn"].name)
    )

    for prompts, sequences in ((0, 1), (0, 129), (1, 0), (1, 1), (2, 7), (5, 31), (3, 140)):
        for tokens in (2, 15, 16, 17, 130):
            counts = [(3, tokens)] * prompts + [(sequence % 9, 1) for sequence in range(sequences)]
            model.begin(step(counts, model.arena.total_blocks), (), ()).finish()

    assert compiled == []


def test_a_type_without_kernels_is_left_to_pytorch(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    runner = load_runner(folder, RunnerSettings(kv_cache_bytes=2**20, dtype="Float64"))
    assert runner.kernels == "torch"


def test_where_kernels_cannot_be_compiled_pytorch_computes(tmp_path, monkeypatch):
    def refuse(*_arguments, **_options):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(GpuSteps, "__init__", refuse)
    folder = tiny_model_folder("llama", tmp_path)
    runner = load_runner(folder, RunnerSettings(kv_cache_bytes=2**20, dtype="Float32"))
    assert runner.kernels == "torch"


def test_graphs_without_memory_are_a_refusal(tmp_path, monkeypatch):
    def refuse(*_arguments, **_options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(GpuSteps, "__init__", refuse)
    folder = tiny_model_folder("llama", tmp_path)
    with pytest.raises(NotEnoughMemory, match="a smaller KV cache is needed"):
        load_runner(folder, RunnerSettings(kv_cache_bytes=2**20, dtype="Float32"))
