"""Weights in eight bits: each block is rounded by one scale, and what was rounded before stays as it is."""

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from warmfleet_contracts.errors import ModelError
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_testing.exact.int8_weights import dequantised
from warmfleet_worker.model.int8 import BLOCK_INPUTS, NotQuantisable, quantised
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings


def weights(outputs: int, inputs: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((outputs, inputs)).astype(np.float32)


@pytest.mark.parametrize("inputs", [1, 31, 32, 33, 64, 100])
def test_no_weight_moves_by_more_than_half_a_step(inputs):
    original = weights(7, inputs)
    matrix = quantised(original)

    steps = matrix.scales.astype(np.float32).repeat(BLOCK_INPUTS, axis=1)[:, :inputs]
    assert matrix.scales.shape == (7, -(-inputs // BLOCK_INPUTS))
    assert (abs(dequantised(matrix) - original) <= steps * 0.5001).all()


def test_blocks_of_gguf_become_themselves_again():
    # given what gguf's own writer made of weights
    packed = gguf.quantize(weights(16, 128), gguf.GGMLQuantizationType.Q8_0)
    blocks = packed.reshape(16, 4, 34)
    scales = blocks[..., :2].copy().view(np.float16)[..., 0]
    values = blocks[..., 2:].copy().view(np.int8).reshape(16, 128)

    # when
    matrix = quantised(gguf.dequantize(packed, gguf.GGMLQuantizationType.Q8_0))

    # then both are as they stood in the file
    assert np.array_equal(matrix.values, values)
    assert np.array_equal(matrix.scales, scales)


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-4, 1.0, 1e4, 8e6])
def test_blocks_of_any_size_stay_finite(scale):
    original = weights(2, 64).clip(-1, 1) * np.float32(scale)
    original[0, :32] = 0
    matrix = quantised(original)

    assert (matrix.values[0, :32] == 0).all()
    assert np.isfinite(dequantised(matrix)).all()
    assert int(matrix.values.min()) >= -127


@pytest.mark.parametrize("damage", [float("nan"), float("inf"), 1e10])
def test_a_weight_that_no_scale_covers_is_refused_by_its_tensor(tmp_path, damage):
    folder = tiny_model_folder("llama", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = damage
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(NotQuantisable):
        quantised(tensors["model.layers.1.mlp.up_proj.weight"])
    with pytest.raises(
        ModelError,
        match=r"tensor model\.layers\.1\.mlp\.up_proj\.weight: a weight is not finite, or too large",
    ):
        load_runner(folder, RunnerSettings(kv_cache_bytes=2**20, weight_quantization="Int8"))
