"""A worker's settings and a request's sampling parameters as vLLM's, and which vLLM is accepted."""

import sys

import pytest

from warmfleet_worker.engine.messages import AddSequences, NewSequence, packed_tokens
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.engine_program import OWN_PROGRAM, EngineMissingError, engine_program
from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import (
    UnfitSettingsError,
    engine_arguments,
    environment,
)
from warmfleet_worker.vllm_engine.sampling import sampling_arguments
from warmfleet_worker.vllm_engine.scores import Score, token_logprobs

DEFAULTS = EngineSettings(model_path="/m", block_size_tokens=32)


def arguments(*, on_cpu=True, **fields):
    return engine_arguments(
        EngineSettings(**{"model_path": "/m", "block_size_tokens": 32, **fields}), on_cpu=on_cpu
    )


@pytest.mark.parametrize(
    ("field", "value", "argument", "expected"),
    [
        ("dtype", "BFloat16", "dtype", "bfloat16"),
        ("max_model_length_tokens", 4096, "max_model_len", 4096),
        ("kv_cache_bytes", 12345, "kv_cache_memory_bytes", 12345),
        ("device_memory_percent", 90, "gpu_memory_utilization", 0.9),
        ("block_size_tokens", 64, "block_size", 64),
        ("max_running_sequences", 3, "max_num_seqs", 3),
        ("max_batched_tokens", 512, "max_num_batched_tokens", 512),
        ("prefix_caching", False, "enable_prefix_caching", False),
    ],
)
def test_a_setting_is_vllms_option(field, value, argument, expected):
    assert arguments(**{field: value})[argument] == expected != arguments().get(argument)


def test_a_dtype_that_is_left_open_is_float32_on_a_cpu_and_the_models_on_a_gpu():
    assert arguments()["dtype"] == "float32"
    assert arguments(on_cpu=False)["dtype"] == "auto"


def test_an_open_length_is_what_the_memory_holds():
    assert arguments()["max_model_len"] == -1


def test_a_share_of_the_device_is_not_also_a_number_of_bytes():
    assert "kv_cache_memory_bytes" not in arguments(device_memory_percent=90)
    assert "gpu_memory_utilization" not in arguments()


def test_blocks_that_a_cpu_does_not_take_are_refused_with_the_field():
    assert arguments(on_cpu=False, block_size_tokens=16)["block_size"] == 16
    with pytest.raises(
        UnfitSettingsError,
        match=r"of 32 tokens, not 16: set kvCache.blockSizeTokens .* to 32, 64 or 128",
    ):
        arguments(block_size_tokens=16)


def test_one_cpu_computes_in_the_engine_cores_process_and_several_devices_by_vllms_default():
    name = "warmfleet_worker.vllm_engine.cpu.executor.TimedSingleProcessExecutor"
    assert arguments()["distributed_executor_backend"] == name
    assert "distributed_executor_backend" not in arguments(tensor_parallel_size=2)
    assert "distributed_executor_backend" not in arguments(on_cpu=False)


def test_threads_wait_for_their_next_part_a_bounded_time():
    assert 1_000 <= int(environment(DEFAULTS)["GOMP_SPINCOUNT"]) < 100_000


def test_threads_are_those_of_openmp_and_vllms_processes_are_not_forked():
    assert environment(EngineSettings(model_path="/m", threads=3))["OMP_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in environment(DEFAULTS)
    assert environment(DEFAULTS)["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


def message(sampling, **fields):
    return AddSequences(
        sequences=[NewSequence(1, seed=0)],
        prompt=packed_tokens([1]),
        sampling=sampling,
        **fields,
    )


SAMPLING = [
    ("temperature", 0.3, "temperature", 0.3),
    ("temperature", 1e-46, "temperature", 0.0),
    ("top_p", 0.4, "top_p", 0.4),
    ("top_k", 7, "top_k", 7),
    ("min_p", 0.1, "min_p", 0.1),
    ("max_output_tokens", 40, "max_tokens", 40),
    ("min_output_tokens", 5, "min_tokens", 5),
    ("logit_bias", {3: -1.5}, "logit_bias", {3: -1.5}),
    ("presence_penalty", 0.5, "presence_penalty", 0.5),
    ("frequency_penalty", 0.6, "frequency_penalty", 0.6),
    ("repetition_penalty", 1.2, "repetition_penalty", 1.2),
    ("stop_token_ids", frozenset({9, 2}), "stop_token_ids", [2, 9]),
    ("logprobs", 3, "logprobs", 3),
    ("prompt_logprobs", 1, "prompt_logprobs", 1),
]


def test_each_sampling_parameter_has_its_place_in_vllms():
    # The seed is that of a sequence: each of a request's choices has its own.
    assert {field for field, *_ in SAMPLING} == set(SamplingParameters.__struct_fields__) - {"seed"}
    for seed in (3, 4):
        found = sampling_arguments(message(SamplingParameters()), seed, vocabulary_size=100)
        assert found["seed"] == seed


@pytest.mark.parametrize(("field", "value", "argument", "expected"), SAMPLING)
def test_a_sampling_parameter_is_vllms_of_that_name(field, value, argument, expected):
    plain = sampling_arguments(message(SamplingParameters()), seed=0, vocabulary_size=100)
    changed = sampling_arguments(message(SamplingParameters(**{field: value})), seed=0, vocabulary_size=100)
    assert changed[argument] == expected
    assert {name for name in plain if plain[name] != changed[name]} == {argument}


def test_vllm_takes_no_seed_above_its_range_no_top_p_of_zero_and_no_request_for_no_token():
    edge = SamplingParameters(top_p=0.0, max_output_tokens=0, min_output_tokens=4)
    found = sampling_arguments(message(edge), seed=2**64 - 1, vocabulary_size=100)
    assert 0 <= found["seed"] < 2**63
    assert 0 < found["top_p"] < 1e-6
    assert (found["max_tokens"], found["min_tokens"]) == (1, 1)


def test_a_stop_token_outside_the_vocabulary_is_left_out_as_it_is_never_generated():
    sampling = SamplingParameters(stop_token_ids=frozenset({2, 99, 100, 2**32 - 1}))
    found = sampling_arguments(message(sampling), seed=0, vocabulary_size=100)
    assert found["stop_token_ids"] == [2, 99]


@pytest.mark.parametrize(
    ("fields", "skips"),
    [({}, False), ({"may_read_cache": False}, True), ({"use_prefix_cache": False}, True)],
)
def test_a_request_that_may_not_read_the_cache_computes_its_whole_prompt(fields, skips):
    found = sampling_arguments(message(SamplingParameters(), **fields), seed=0, vocabulary_size=100)
    assert found["skip_reading_prefix_cache"] is skips


def test_the_most_likely_tokens_come_first_and_the_chosen_one_only_if_it_is_among_them():
    position = {5: Score(-3.0, 9), 7: Score(-0.5, 1), 6: Score(-0.5, 1)}

    [score] = token_logprobs([(5, position)], top=2)

    assert score.logprob == -3.0
    assert list(score.top_token_ids) == [6, 7]
    assert token_logprobs([], top=2) is None
    assert next(iter(token_logprobs([(5, position)], top=0))).top_token_ids.tolist() == []


def test_our_engine_runs_in_our_interpreter_and_vllm_in_its_own(tmp_path):
    assert engine_program("Warmfleet", {}, tmp_path / "none") == OWN_PROGRAM
    assert OWN_PROGRAM.python == sys.executable
    python = tmp_path / "python"
    python.touch()
    assert engine_program("VLLM", {}, python).python == str(python)
    named = engine_program("VLLM", {"WARMFLEET_VLLM_PYTHON": str(python)}, tmp_path / "none")
    assert (named.python, named.module) == (str(python), "warmfleet_worker.vllm_engine.process")


def test_without_vllm_its_type_names_what_to_install(tmp_path):
    with pytest.raises(
        EngineMissingError, match=r"there is no .*none: run `make vllm`, or name an interpreter"
    ):
        engine_program("VLLM", {}, tmp_path / "none")
