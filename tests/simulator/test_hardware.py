"""Named GPUs and models give step times and a KV capacity."""

import pytest

from warmfleet_simulator.errors import SimulationError
from warmfleet_simulator.hardware import GPUS, MODELS, replica_settings
from warmfleet_worker.engine.step_time import StepShape


def test_the_kv_cache_is_what_the_weights_leave() -> None:
    replica = replica_settings("H100", "Llama-3.1-8B", block_size_tokens=16)

    kv_bytes = replica.capacity_tokens * 2 * 32 * 8 * 128 * 2
    assert 0 <= 80e9 * 0.9 - 2 * 8.03e9 - kv_bytes < 16 * 131_072


def test_a_decode_step_reads_all_weights_once() -> None:
    times = replica_settings("H100", "Llama-3.1-8B", block_size_tokens=16).step_times

    seconds = times.step_ps(StepShape.of_decodes([1])) / 1e12
    assert seconds == pytest.approx(2 * 8.03e9 / (3350e9 * 0.7) + 0.002, rel=0.01)


def test_several_gpus_are_one_with_the_sum_of_their_figures() -> None:
    eight = replica_settings("8xH100", "Llama-3.1-70B", block_size_tokens=16)

    assert eight.capacity_tokens == pytest.approx((8 * 72e9 - 141.2e9) / 327_680, rel=0.001)


def test_each_gpu_and_each_model_names_its_source() -> None:
    assert all(entry.source for entry in (*GPUS.values(), *MODELS.values()))


@pytest.mark.parametrize(
    ("gpu", "model", "reason"),
    [
        ("H101", "Llama-3.1-8B", "no GPU is called 'H101'; known are L4, L40S"),
        ("0xH100", "Llama-3.1-8B", "no GPU is called '0xH100'"),
        ("65xH100", "Llama-3.1-8B", "no GPU is called '65xH100'"),
        ("9" * 5000 + "xH100", "Llama-3.1-8B", "no GPU is called"),
        ("٣xH100", "Llama-3.1-8B", "no GPU is called"),
        ("H100", "Llama-4", "no model is called 'Llama-4'"),
        ("H100", "Llama-3.1-70B", "leave no memory"),
    ],
)
def test_what_is_unknown_or_does_not_fit_is_refused(gpu: str, model: str, reason: str) -> None:
    with pytest.raises(SimulationError, match=reason):
        replica_settings(gpu, model, block_size_tokens=16)
