"""Equal bits, however a request is computed: random schedules against each request alone.

Tokens and all log probabilities of 1,000 schedules in the dtype that people get by default, and of some in
float32, equal those of the same requests one at a time, uncut, from a cold cache. The counts prove that the
schedules preempt, cut, batch, cache and resume. Without the native step these tests fail: PyTorch's kernels
round a row differently in another batch.
"""

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warmfleet_testing.engine.add_messages import add_sequence
from warmfleet_testing.engine.catalog_model import pulled_catalog_model
from warmfleet_testing.engine.engine_runs import IDENTITY
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_testing.exact.schedules import Counts, Schedule, answers_alone, drawn_conversations
from warmfleet_worker.engine.engine import Engine
from warmfleet_worker.engine.messages import AddSequences
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine.scheduler import SchedulerSettings
from warmfleet_worker.native.library import native_library
from warmfleet_worker.runner.runner import ModelRunner, load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings
from warmfleet_worker.settings import CpuKernels, Dtype, WeightQuantization

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 4},
    "qwen3": {"num_hidden_layers": 3, "head_dim": 24, "num_key_value_heads": 1, "vocab_size": 509},
    "qwen2": {
        "num_hidden_layers": 3,
        "hidden_size": 54,
        "intermediate_size": 101,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 18,
        "tie_word_embeddings": True,
    },
    "mistral": {"num_hidden_layers": 5, "head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 2},
}
"""Grouped queries, sizes that are no multiple of any tile, tied embeddings, biases, a sliding window."""
SCHEDULES = {"Auto": 250, "Float32": 63}
"""Of each model, by dtype."""
CONVERSATIONS = 24
SCHEDULES_OF_CONVERSATIONS = 63
"""So many draw from the same conversations, which are computed alone once."""
ARENA_BYTES = 2**23


@pytest.fixture(scope="module")
def runner_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], ModelRunner]:
    @cache
    def made_once(family: str, dtype: str) -> ModelRunner:
        folder = tiny_model_folder(family, tmp_path_factory.mktemp(family), seed=5, **MODELS[family])
        return exact_runner(folder, dtype, ARENA_BYTES)

    return made_once


def exact_runner(
    folder: Path,
    dtype: Dtype,
    arena_bytes: int,
    kernels: CpuKernels = "Auto",
    quantization: WeightQuantization = "None",
) -> ModelRunner:
    settings = RunnerSettings(
        kv_cache_bytes=arena_bytes,
        dtype=dtype,
        weight_quantization=quantization,
        threads=1,
        cpu_kernels=kernels,
        poison=True,
    )
    runner = load_runner(folder, settings)
    assert runner.exact, "the native step does not run here: equal bits are not promised"
    assert runner.dtype_name == {"Auto": "BFloat16"}.get(dtype, dtype)
    return runner


def happened(runner: ModelRunner, seeds: range, conversations: int = CONVERSATIONS) -> Counter[str]:
    """Run schedules, each of which asserts its answers; returns in how many of them each thing happened."""
    found: Counter[str] = Counter()
    for seed in seeds:
        if (seed - seeds.start) % SCHEDULES_OF_CONVERSATIONS == 0:
            drawn = drawn_conversations(seed, runner.model.vocab_size, conversations)
            expected = [answers_alone(runner, turns) for turns in drawn]
        found.update(kinds(Schedule(runner, seed, drawn, expected).run()))
    return found


def kinds(counts: Counts) -> list[str]:
    assert not counts.mismatched_blocks
    return [
        name
        for name, value in {
            "preempted": counts.preempted_sequences,
            "chunks": counts.chunks,
            "batches of four": counts.largest_batch >= 4,
            "cached": counts.cached_tokens,
            "resumed": counts.resumed_sequences,
            "turns": counts.later_turns,
            "verified": counts.verified_blocks,
        }.items()
        if value
    ]


@pytest.mark.parametrize("dtype", SCHEDULES)
@pytest.mark.parametrize("family", MODELS)
def test_no_bit_of_an_answer_depends_on_the_schedule(runner_of, family, dtype) -> None:
    runner = runner_of(family, dtype)
    schedules = SCHEDULES[dtype]

    found = happened(runner, range(schedules))

    for kind in ("preempted", "chunks", "batches of four", "turns", "resumed"):
        assert found[kind] >= 0.3 * schedules, (kind, found)
    if not runner.model.window_tokens:
        assert found["cached"] >= 0.3 * schedules, found
        assert found["verified"] >= 0.1 * schedules, found


@pytest.mark.parametrize("family", MODELS)
def test_no_bit_of_an_answer_with_int8_weights_depends_on_the_schedule(tmp_path, family) -> None:
    folder = tiny_model_folder(family, tmp_path, seed=5, **MODELS[family])
    runner = exact_runner(folder, "Auto", ARENA_BYTES, quantization="Int8")

    found = happened(runner, range(20))

    assert min(found["preempted"], found["chunks"], found["batches of four"]) > 0, found


@pytest.mark.parametrize("level", native_library().levels())
@pytest.mark.parametrize(("dtype", "quantization"), [("Auto", "None"), ("Float32", "None"), ("Auto", "Int8")])
def test_each_level_that_runs_here_has_bits_that_no_schedule_changes(
    tmp_path, level, dtype, quantization
) -> None:
    folder = tiny_model_folder("qwen3", tmp_path, **MODELS["qwen3"])
    runner = exact_runner(folder, dtype, ARENA_BYTES, level.option, quantization)

    assert happened(runner, range(8))["turns"] > 0


def test_a_flipped_bit_in_the_memory_of_a_cached_block_is_found(runner_of) -> None:
    runner = runner_of("llama", "Auto")
    limits = SchedulerSettings(max_model_length_tokens=256)
    engine = Engine(runner, IDENTITY, "epoch", 16, 0, limits, verify_hits_one_in=1)
    prompt = list(range(100, 164))
    ask_once = [
        add_sequence(number, prompt, SamplingParameters(temperature=0.0, max_output_tokens=20))
        for number in range(5)
    ]
    clean = finished(engine, ask_once[0], ask_once[1])
    cached = engine._pool.find(next(iter(engine._pool.resident_hashes)))
    assert cached is not None
    words = runner._arena.storage.view(np.int16)
    words[(cached.block_id + 1) * runner._arena.layout.block_stride_bytes // 2 - 1] ^= 1

    assert clean == (3, 0)
    _, mismatched = finished(engine, ask_once[2])
    assert mismatched == 1
    # The dropped blocks come back with the next request at the latest, and the one after it hits them.
    assert finished(engine, ask_once[3])[1] == 0
    assert finished(engine, ask_once[4]) == (3, 0)


def finished(engine: Engine, *messages: AddSequences) -> tuple[int, int]:
    """Blocks that were verified and that differed until these sequences and their verification have ended."""
    verified = mismatched = 0
    for message in messages:
        engine.add(message)
        while engine.has_work:
            report = engine.step()
            verified += report.verified_blocks
            mismatched += report.mismatched_blocks
    return verified, mismatched


@pytest.mark.model
def test_no_bit_of_the_real_models_answers_depends_on_the_schedule() -> None:
    folder = pulled_catalog_model()
    runner = exact_runner(folder, "Auto", 2**27)

    # One schedule in which all of it happens: decisions do not depend on the model.
    found = happened(runner, range(31, 32), conversations=8)

    assert {"preempted", "chunks", "batches of four", "cached", "turns", "verified"} <= found.keys()
