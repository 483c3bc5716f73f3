"""The runner beyond parity: memory, finiteness, determinism, settings."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from warmfleet_testing.engine.runner_driver import GREEDY, AllocatedMemory, RunnerDriver
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.engine.batch import Chunk, SampleRequest, StepBatch
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.runner.runner import cpu_dtype, load_runner
from warmfleet_worker.runner.runner_settings import KvCacheTooSmall, RunnerSettings

torch.set_num_threads(1)

MIB = 1024 * 1024
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model_folder("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def runner(folder):
    return load_runner(folder, RunnerSettings(kv_cache_bytes=2 * MIB, dtype="Float32", poison=True))


def test_a_token_costs_two_vectors_per_layer_and_kv_head(runner):
    # 2 layers, 2 KV heads, head dimension 16, 4 bytes.
    assert runner.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert runner.total_blocks == 2 * MIB // (16 * runner.kv_bytes_per_token)


def test_the_cache_is_rounded_down_to_whole_blocks(folder):
    block_bytes = 16 * 512
    assert load_runner(folder, _settings(3 * block_bytes - 1)).total_blocks == 2
    with pytest.raises(KvCacheTooSmall, match="8191 bytes is smaller than one block"):
        load_runner(folder, _settings(block_bytes - 1))


def test_no_kv_sized_memory_is_allocated_after_start(runner):
    # given a warmed-up runner and a context whose KV is 128 KiB per layer
    driver = RunnerDriver(runner)
    first, second = driver.sequence([1] * 500), driver.sequence([2] * 300)
    driver.step([(first, 500), (second, 300)])
    storage = runner._arena.storage.ctypes.data

    # when it decodes
    with AllocatedMemory() as allocations:
        for _ in range(8):
            driver.step([(first, 1), (second, 1)])

    # then nothing allocated comes near the size of what is attended to
    context_bytes_per_layer = 500 * runner.kv_bytes_per_token // runner.model.layers
    most_bytes = max(allocations.largest_tensor_bytes, allocations.most_array_bytes)
    assert 0 < most_bytes < context_bytes_per_layer / 4
    assert runner._arena.storage.ctypes.data == storage


def test_a_poisoned_block_is_noticed_and_spares_the_other_sequences(runner):
    # given two sequences, one of which loses a block that it still needs
    chunks = [_chunk(1, [3] * 20, 0, [4, 9]), _chunk(2, [5] * 20, 0, [7, 2])]
    runner.execute(StepBatch(tuple(chunks)))
    runner.poison_blocks([4])

    # when both decode
    batch = StepBatch((_chunk(1, [3], 20, [4, 9]), _chunk(2, [5], 20, [7, 2])))
    lost, kept = runner.execute(batch).chunks

    # then
    assert (lost.finite, lost.token_ids) == (False, ())
    assert kept.finite
    assert len(kept.token_ids) == 1


@pytest.mark.parametrize("position", [0, 7, 19])
def test_every_token_of_a_chunk_is_checked_not_only_the_last(position, tmp_path):
    # given a model with one token whose embedding is not a number
    folder = tiny_model_folder("llama", tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][77] = torch.nan
    save_file(weights, folder / "model.safetensors")
    runner = load_runner(folder, _settings(2 * MIB))
    tainted = [1] * 20
    tainted[position] = 77

    # when a chunk without a sample holds it
    batch = StepBatch(
        (
            Chunk(1, [1] * 20, 0, [0, 1], None),
            Chunk(2, tainted, 0, [2, 3], None),
            _chunk(3, [1] * 20, 0, [4, 5]),
        )
    )
    results = runner.execute(batch).chunks

    # then its chunk alone is not finite
    assert [result.finite for result in results] == [True, False, True]
    assert [len(result.token_ids) for result in results] == [0, 0, 1]


def test_an_empty_step_is_no_step(runner):
    assert runner.execute(StepBatch(())).chunks == ()


def test_the_same_steps_give_the_same_tokens(folder):
    noisy = SamplingParameters(temperature=1.3, top_p=0.95, seed=12345)

    def answer():
        driver = RunnerDriver(load_runner(folder, _settings(2 * MIB)))
        sequences = [driver.sequence([7] * 9, noisy), driver.sequence([8] * 33, GREEDY)]
        driver.step([(one, len(one.token_ids)) for one in sequences])
        for _ in range(30):
            driver.step([(one, 1) for one in sequences])
        return [one.output_ids for one in sequences]

    first = answer()
    assert first == answer()
    assert len(set(first[0])) > 10


def test_noise_follows_the_seed_and_not_the_batch(runner):
    driver = RunnerDriver(runner)
    prompt = [5, 6, 7]

    def noisy(seed):
        return driver.sequence(prompt, SamplingParameters(temperature=1.5, seed=seed))

    # given three sequences alone
    alone = []
    for seed in (1, 2, 1):
        one = noisy(seed)
        driver.step([(one, 3)])
        for _ in range(20):
            driver.step([(one, 1)])
        alone.append(one.output_ids)

    # when two of them run together
    both = [noisy(2), noisy(1)]
    driver.step([(one, 3) for one in both])
    for _ in range(20):
        driver.step([(one, 1) for one in both])

    # then
    assert alone[0] == alone[2] != alone[1]
    assert [one.output_ids for one in both] == [alone[1], alone[0]]


@pytest.mark.parametrize("dtype", ["BFloat16", "Float16"])
def test_half_precision_agrees_with_float32_where_the_choice_is_clear(dtype, folder):
    half = RunnerDriver(load_runner(folder, _settings(2 * MIB, dtype)))
    full = RunnerDriver(load_runner(folder, _settings(2 * MIB)))
    prompts = [[start + 3 * step for step in range(40)] for start in range(40)]

    agreeing = sum(half.generate(p, 1) == full.generate(p, 1) for p in prompts)

    assert half.runner.dtype_name == dtype
    assert half.runner.kv_bytes_per_token == full.runner.kv_bytes_per_token // 2
    assert agreeing >= 34


@pytest.mark.parametrize(("asked", "given_tokens"), [(0, 1024), (100, 100), (5000, 1024)])
def test_a_sequence_is_never_longer_than_the_model_was_made_for(asked, given_tokens, folder):
    settings = RunnerSettings(kv_cache_bytes=MIB, dtype="Float32", max_model_length_tokens=asked)

    assert load_runner(folder, settings).max_model_length_tokens == given_tokens


def test_threads_are_set_once(folder):
    before = torch.get_num_threads()
    try:
        load_runner(folder, RunnerSettings(kv_cache_bytes=MIB, dtype="Float64", threads=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("asked", "native", "resolved"),
    [("Auto", True, "BFloat16"), ("Auto", False, "Float32"), ("Float64", True, "Float64")],
)
def test_auto_is_bfloat16_where_equal_bits_are_promised(asked, native, resolved):
    assert cpu_dtype(asked, native=native) == resolved


def _settings(kv_cache_bytes, dtype="Float32"):
    return RunnerSettings(kv_cache_bytes=kv_cache_bytes, dtype=dtype, max_model_length_tokens=512)


def _chunk(sequence_id, token_ids, first_position, block_ids):
    return Chunk(sequence_id, token_ids, first_position, block_ids, SampleRequest(GREEDY, 0))
