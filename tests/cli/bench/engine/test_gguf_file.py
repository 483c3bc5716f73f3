"""The GGUF file holds the model's own weights, as llama.cpp wants them."""

import json

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from warmfleet_cli.bench.engine.gguf_file import gguf_name, write_gguf
from warmfleet_cli.bench.engine.model import RandomShape
from warmfleet_cli.bench.engine.random_model import SHAPES, write_random_model
from warmfleet_testing.engine.tiny_models import tiny_model_folder
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.shapes import model_size
from warmfleet_worker.model_store.gguf import undo_rope_permutation


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_every_weight_comes_back_rounded_to_bfloat16(family, tmp_path):
    folder = tiny_model_folder(family, tmp_path / "model")
    config = load_model_config(folder)

    write_gguf(folder, tmp_path / "model.gguf")

    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    found = {tensor.name: tensor for tensor in reader.tensors}
    weights = load_file(folder / "model.safetensors")
    assert len(found) == len(weights)
    for name, weight in weights.items():
        tensor = found[gguf_name(name)]
        values = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        values = values.reshape(weight.shape)
        if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            values = undo_rope_permutation(values, config.heads if "q_proj" in name else config.kv_heads)
        expected = weight.float() if weight.dim() == 1 else weight.to(torch.bfloat16).float()
        assert torch.equal(torch.from_numpy(np.array(values)), expected), name
    assert reader.get_field(f"{family}.rope.freq_base").contents() == config.rope_theta
    assert reader.get_field(f"{family}.attention.key_length").contents() == config.head_dim


def test_an_architecture_that_llama_cpp_reads_otherwise_is_refused(tmp_path):
    folder = tiny_model_folder("mistral", tmp_path / "model")

    with pytest.raises(ValueError, match="no GGUF is written of MistralForCausalLM"):
        write_gguf(folder, tmp_path / "model.gguf")
    with pytest.raises(ValueError, match=r"unknown tensor model\.layers\.0\.new\.weight"):
        gguf_name("model.layers.0.new.weight")


def test_random_weights_have_the_names_and_sizes_of_their_shape(tmp_path):
    shape = {
        **SHAPES["qwen3-0.6b"],
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "head_dim": 8,
    }

    write_random_model(shape, tmp_path)

    weights = load_file(tmp_path / "model.safetensors")
    assert (
        sum(weight.numel() for weight in weights.values())
        == model_size(load_model_config(tmp_path)).parameters
    )
    assert weights["model.layers.1.mlp.down_proj.weight"].float().std() == pytest.approx(3072**-0.5, rel=0.1)


def test_a_shape_has_the_weights_of_its_name(tmp_path):
    found = {}
    for name, shape in SHAPES.items():
        (tmp_path / "config.json").write_text(json.dumps(shape))
        found[name] = model_size(load_model_config(tmp_path)).parameters

    assert set(SHAPES) == set(RandomShape)
    assert found == {
        "smollm2-135m": 134_515_008,
        "qwen3-0.6b": 596_049_920,
        "llama-3.1-8b": 8_030_261_248,
    }
