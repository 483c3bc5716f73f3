import pytest
import torch
from safetensors.torch import load_file, save_file

from warmfleet_cli.bench.cache.generation import SLICE_STEPS, arena_blocks, compare_generation
from warmfleet_cli.bench.cache.reference import transformers_step
from warmfleet_cli.bench.processes import BenchError
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings

PROMPT = list(range(40, 61))
BLOCK = 16


@pytest.fixture
def folder(tmp_path):
    torch.set_num_threads(1)
    return tiny_model_folder("llama", tmp_path / "model")


def runner_for(folder, steps, **settings):
    blocks = arena_blocks(len(PROMPT), steps, BLOCK)
    block_bytes = 2 * 2 * 2 * 16 * 4 * BLOCK  # K and V, layers, KV heads, head dimension, float32
    return load_runner(
        folder, RunnerSettings(kv_cache_bytes=blocks * block_bytes, dtype="Float32", threads=1, **settings)
    )


def last(comparisons):
    *_, comparison = comparisons
    return comparison


def test_both_ways_give_the_tokens_that_transformers_generates(folder):
    steps = 25
    name, reference = transformers_step(folder, torch.float32)

    comparison = last(
        compare_generation(
            runner_for(folder, steps), PROMPT, steps=steps, block_size_tokens=BLOCK, reference=reference
        )
    )

    expected = list(PROMPT)
    for _ in range(steps):
        expected.append(reference(expected))
    assert comparison.cached.token_ids == expected[len(PROMPT) :]
    assert comparison.uncached.token_ids == expected[len(PROMPT) :]
    assert name.startswith("transformers ")


def test_the_reference_is_asked_once_per_slice_about_the_same_tokens(folder):
    steps = 2 * SLICE_STEPS + 1
    asked = []

    def reference(token_ids):
        asked.append(list(token_ids))
        return -1

    comparison = last(
        compare_generation(
            runner_for(folder, steps), PROMPT, steps=steps, block_size_tokens=BLOCK, reference=reference
        )
    )

    known = PROMPT + comparison.uncached.token_ids
    assert asked == [known[: len(PROMPT) + done] for done in (0, SLICE_STEPS, 2 * SLICE_STEPS)]
    assert comparison.reference.lengths == [len(tokens) for tokens in asked]
    assert comparison.reference.equal_tokens == 0


def test_only_the_cached_way_holds_blocks_between_steps_and_just_enough_of_them(folder):
    steps = 40

    comparison = last(
        compare_generation(runner_for(folder, steps), PROMPT, steps=steps, block_size_tokens=BLOCK)
    )

    # After the n-th step the KV of the prompt and of n - 1 generated tokens is there.
    assert comparison.cached.held_blocks == [-(-(len(PROMPT) + done) // BLOCK) for done in range(steps)]
    assert set(comparison.uncached.held_blocks) == {0}
    assert comparison.speedup == comparison.uncached.seconds / comparison.cached.seconds


def test_a_poisoned_arena_shows_that_no_step_reads_what_it_did_not_write(folder):
    steps = 20

    plain, poisoned = (
        last(
            compare_generation(
                runner_for(folder, steps, poison=poison), PROMPT, steps=steps, block_size_tokens=BLOCK
            )
        )
        for poison in (False, True)
    )

    assert plain.cached.token_ids == poisoned.cached.token_ids == poisoned.uncached.token_ids


def test_a_model_that_computes_nonsense_ends_the_benchmark(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][:] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(BenchError, match="not finite"):
        last(compare_generation(runner_for(folder, 4), PROMPT, steps=4, block_size_tokens=BLOCK))
