"""Converted GGUF files against the `transformers` model that they were written from."""

import json

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from warmfleet_contracts.errors import ModelError
from warmfleet_testing.engine.tiny_gguf import tiny_llama, write_tiny_gguf
from warmfleet_testing.engine.tiny_tokenizer import CHATML_TEMPLATE, tiny_tokenizer
from warmfleet_worker.model.checkpoint import open_checkpoint
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.int8 import quantised
from warmfleet_worker.model_store.assets import load_prompt_assets
from warmfleet_worker.model_store.conversion import convert_gguf
from warmfleet_worker.model_store.gguf import GgufModel, undo_rope_permutation


def convert(gguf_path, folder):
    folder.mkdir()
    progress = []
    convert_gguf(gguf_path, folder, lambda done, total: progress.append((done, total)))
    return progress


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_converted_model_computes_what_the_original_does(tmp_path, tied):
    # given
    original = tiny_llama(tied=tied)
    write_tiny_gguf(tmp_path / "tiny.gguf", original)

    # when
    convert(tmp_path / "tiny.gguf", tmp_path / "model")
    converted, loading = AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, output_loading_info=True
    )

    # then: the same weights to the last bit, so the same logits
    assert not any(loading.values())
    expected = original.state_dict()
    for name, tensor in converted.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    token_ids = torch.arange(40).reshape(1, -1)
    with torch.inference_mode():
        assert torch.equal(converted(token_ids).logits, original(token_ids).logits)


def test_the_configuration_is_the_original_one(tmp_path):
    original = tiny_llama()
    convert(write_tiny_gguf(tmp_path / "tiny.gguf", original), tmp_path / "model")

    config = json.loads((tmp_path / "model" / "config.json").read_text())

    expected = original.config.to_dict()
    for key in config.keys() - {"architectures", "dtype", "rope_theta", "bos_token_id", "pad_token_id"}:
        assert config[key] == expected[key], key
    assert config["rope_theta"] == expected["rope_parameters"]["rope_theta"]


def dequantise_q4_1(blocks):
    """Blocks of 32 weights: scale and minimum as float16, low nibbles first, then the high ones."""
    scale, minimum = (blocks[..., at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    nibbles = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1).astype(np.float32)
    return scale * nibbles + minimum


def dequantise_q8_0(blocks):
    """Blocks of 32 weights: scale as float16, then 32 signed bytes."""
    scale = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    return scale * blocks[..., 2:].copy().view(np.int8).astype(np.float32)


@pytest.mark.parametrize(
    ("quantization", "block_bytes", "dequantise"),
    [
        (gguf.GGMLQuantizationType.Q4_1, 20, dequantise_q4_1),
        (gguf.GGMLQuantizationType.Q8_0, 34, dequantise_q8_0),
    ],
    ids=["Q4_1", "Q8_0"],
)
def test_weights_are_stored_exactly_as_they_dequantise(tmp_path, quantization, block_bytes, dequantise):
    # given
    original = tiny_llama()
    convert(write_tiny_gguf(tmp_path / "q.gguf", original, quantization=quantization), tmp_path / "model")

    # when
    name = "model.layers.1.mlp.gate_proj.weight"
    with safe_open(tmp_path / "model" / "model.safetensors", framework="np") as weights:
        stored = weights.get_tensor(name)

    # then
    packed = gguf.quantize(original.state_dict()[name].numpy(), quantization)
    expected = dequantise(packed.reshape(stored.shape[0], -1, block_bytes)).reshape(stored.shape)
    assert stored.dtype == np.float32
    assert np.array_equal(stored, expected)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_worker_reads_the_eight_bits_of_a_file(tmp_path, tied):
    # given a file, whose weights are stored in float32
    q8 = gguf.GGMLQuantizationType.Q8_0
    original = tiny_llama(tied=tied)
    convert(write_tiny_gguf(tmp_path / "q.gguf", original, quantization=q8), folder := tmp_path / "model")
    config = load_model_config(folder)
    weights = {name: value.numpy() for name, value in original.state_dict().items() if value.ndim == 2}

    # when a worker reads them in eight bits
    reader = open_checkpoint(folder, config)
    read = {name: quantised(reader.tensor(name)) for name in weights if reader.has(name)}

    # then scales and values are those of the file
    assert len(read) == len(weights) - tied
    for name, matrix in read.items():
        blocks = gguf.quantize(weights[name], q8).reshape(len(weights[name]), -1, 34)
        scales, values = blocks[..., :2].copy().view(np.float16), blocks[..., 2:].copy().view(np.int8)
        assert np.array_equal(matrix.scales, scales[..., 0]), name
        assert np.array_equal(matrix.values, values.reshape(weights[name].shape)), name


def test_the_permutation_is_undone_head_by_head():
    # given: two heads of four rows, interleaved as rotary pairs (0, 2) (1, 3)
    rows = np.array([[0.0], [2.0], [1.0], [3.0], [4.0], [6.0], [5.0], [7.0]], dtype=np.float32)

    assert undo_rope_permutation(rows, heads=2).ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_the_prompt_assets_are_those_of_the_file(tmp_path):
    convert(write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama()), tmp_path / "model")

    assets = load_prompt_assets(tmp_path / "model")

    tokenizer = json.loads(assets.tokenizer_json)
    expected = tiny_tokenizer()
    assert tokenizer["added_tokens"] == expected["added_tokens"]
    assert tokenizer["model"] == expected["model"]
    assert assets.chat_template == CHATML_TEMPLATE
    assert assets.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }
    assert not assets.add_bos


def test_progress_counts_the_bytes_of_the_weights(tmp_path):
    original = tiny_llama()

    progress = convert(write_tiny_gguf(tmp_path / "tiny.gguf", original), tmp_path / "model")

    total = sum(4 * parameter.numel() for parameter in original.parameters())
    assert progress[0] == (0, total)
    assert progress[-1] == (total, total)
    assert progress == sorted(progress)


@pytest.mark.parametrize(
    ("key", "value"),
    [("general.architecture", "mamba"), ("tokenizer.ggml.model", "llama"), ("tokenizer.ggml.pre", "qwen2")],
)
def test_a_file_of_another_kind_is_refused_by_its_key(tmp_path, key, value):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama(), metadata={key: value})

    with pytest.raises(ModelError, match=f"{key} is {value!r}"):
        convert(path, tmp_path / "model")


@pytest.mark.parametrize("kept_ratio", [0.0, 0.001, 0.01, 0.05, 0.2, 0.6, 0.99])
def test_a_truncated_file_is_refused_by_name(tmp_path, kept_ratio):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tiny_llama())
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept_ratio)])

    with pytest.raises(ModelError, match=r"tiny\.gguf is not a readable GGUF file"):
        GgufModel(path)
