"""What a model folder may hold, and by which name everything else is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from warmfleet_contracts.errors import ModelError
from warmfleet_testing.engine.tiny_models import LLAMA3_ROPE, TINY_FAMILIES, tiny_model_folder
from warmfleet_worker.model.config import Llama3Scaling, load_model_config
from warmfleet_worker.model.loader import load_decoder
from warmfleet_worker.model.shapes import expected_shapes

torch.set_num_threads(1)

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_a_sharded_checkpoint_loads_like_a_single_one(family, tmp_path):
    # given
    single = tiny_model_folder(family, tmp_path / "single")
    sharded = _shard(tiny_model_folder(family, tmp_path / "sharded"), shards=3)

    # when
    ours, theirs = _load(single), _load(sharded)

    # then
    assert torch.equal(ours.embedding, theirs.embedding)
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        assert torch.equal(one.qkv.weight, other.qkv.weight)
        assert torch.equal(one.gate_up.weight, other.gate_up.weight)


def test_projections_are_fused_in_order(tmp_path):
    folder = tiny_model_folder("qwen2", tmp_path)
    weights = load_file(folder / WEIGHTS)
    attention = "model.layers.1.self_attn"

    qkv = _load(folder).layers[1].qkv

    for kind, fused in (("weight", qkv.weight), ("bias", qkv.bias)):
        parts = [weights[f"{attention}.{part}_proj.{kind}"] for part in "qkv"]
        assert torch.equal(fused, torch.cat(parts))


def test_tied_embeddings_share_their_memory(tmp_path):
    decoder = _load(tiny_model_folder("llama", tmp_path, tie_word_embeddings=True))

    assert decoder.head.weight.data_ptr() == decoder.embedding.data_ptr()


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(tmp_path):
    folder = tiny_model_folder("llama", tmp_path, tie_word_embeddings=True)
    weights = load_file(folder / WEIGHTS)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / WEIGHTS)
    _load(folder)

    weights["lm_head.weight"][3, 4] += 1
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(ModelError, match=r"lm_head\.weight differs"):
        _load(folder)


def test_a_derived_table_of_old_checkpoints_is_ignored(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    weights = load_file(folder / WEIGHTS)
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(weights, folder / WEIGHTS)

    _load(folder)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_every_missing_tensor_is_named(family, tmp_path):
    folder = tiny_model_folder(family, tmp_path, num_hidden_layers=1)
    complete = load_file(folder / WEIGHTS)
    assert complete.keys() == expected_shapes(load_model_config(folder)).keys()
    for name in complete:
        save_file({key: value for key, value in complete.items() if key != name}, folder / WEIGHTS)
        with pytest.raises(ModelError, match=rf"model\.safetensors: tensor {name} is missing"):
            _load(folder)


def test_an_unexpected_tensor_is_named(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    weights = load_file(folder / WEIGHTS) | {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}
    save_file(weights, folder / WEIGHTS)

    with pytest.raises(ModelError, match=r"layers\.0\.self_attn\.q_proj\.bias is not part"):
        _load(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    weights = load_file(folder / WEIGHTS)
    weights["model.layers.1.mlp.up_proj.weight"] = torch.ones(95, 64)
    save_file(weights, folder / WEIGHTS)

    with pytest.raises(ModelError, match=r"up_proj\.weight has shape \[95, 64\].* asks for \[96, 64\]"):
        _load(folder)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (lambda entry: list(entry.values()), "model.safetensors: is not a readable safetensors file"),
        (
            lambda entry: {**entry, "shape": [1] * 70 + entry["shape"]},
            r"model\.norm\.weight has shape \[1, 1",
        ),
    ],
    ids=["a list", "more dimensions than an array can have"],
)
def test_a_header_of_another_form_is_refused_by_name(tmp_path, entry, reason):
    folder = tiny_model_folder("llama", tmp_path)
    data = (folder / WEIGHTS).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["model.norm.weight"] = entry(header["model.norm.weight"])
    written = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(len(written).to_bytes(8, "little") + written + data[end:])

    with pytest.raises(ModelError, match=reason):
        _load(folder)


def test_quantised_integers_are_not_taken_for_weights(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    weights = load_file(folder / WEIGHTS)
    weights["model.norm.weight"] = torch.ones(64, dtype=torch.int8)
    save_file(weights, folder / WEIGHTS)

    with pytest.raises(ModelError, match=r"model\.norm\.weight holds I8"):
        _load(folder)


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_is_refused_by_name(keep, tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:keep])

    with pytest.raises(ModelError, match=r"model\.safetensors: is not a readable"):
        _load(folder)


def test_a_folder_with_only_a_pickle_is_refused(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()

    with pytest.raises(ModelError, match=r"model\.safetensors: is missing"):
        _load(folder)


def test_a_missing_shard_is_named(tmp_path):
    folder = _shard(tiny_model_folder("llama", tmp_path), shards=2)
    (folder / "model-1.safetensors").unlink()

    with pytest.raises(ModelError, match=r"model-1\.safetensors: is missing"):
        _load(folder)


@pytest.mark.parametrize(
    "file_name", ["../model.safetensors", "/etc/passwd", "weights.bin", "a/b.safetensors", ""]
)
def test_an_index_cannot_point_elsewhere(file_name, tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": file_name}}))

    with pytest.raises(ModelError, match="is not the name of a safetensors file"):
        _load(folder)


def test_an_index_that_promises_too_much_is_refused(tmp_path):
    folder = _shard(tiny_model_folder("llama", tmp_path), shards=2)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.extra"] = "model-0.safetensors"
    (folder / INDEX).write_text(json.dumps(index))

    with pytest.raises(ModelError, match=r"model-0\.safetensors: tensor model\.extra is missing"):
        _load(folder)


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 1}}'])
def test_a_malformed_index_is_refused(index, tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    (folder / INDEX).write_text(index)

    with pytest.raises(ModelError, match=INDEX):
        _load(folder)


@pytest.mark.parametrize(
    ("family", "overrides", "reason"),
    [
        ("llama", {"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not one of Llama"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "awq"),
        ("llama", {"num_attention_heads": 6, "num_key_value_heads": 4}, "6 is not a multiple"),
        ("llama", {"head_dim": None, "hidden_size": 66}, "66 is not a multiple"),
        ("llama", {"head_dim": 15}, "head_dim 15 is odd"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "needs factor"),
        ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ("llama", {"rope_parameters": {"rope_theta": "big"}}, "RoPE parameters"),
        ("llama", {"hidden_size": 0}, r"\$\.hidden_size"),
        ("llama", {"vocab_size": "many"}, r"\$\.vocab_size"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, "layer_types"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(family, overrides, reason, tmp_path):
    tiny_model_folder(family, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | overrides
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(ModelError, match=rf"config\.json: .*{reason}"):
        load_model_config(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff", b" " * (1024 * 1024 + 1)])
def test_a_malformed_configuration_is_refused(content, tmp_path):
    (tmp_path / "config.json").write_bytes(content)

    with pytest.raises(ModelError, match=r"config\.json"):
        load_model_config(tmp_path)


def test_a_missing_configuration_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json: cannot be read"):
        load_model_config(tmp_path)


def test_old_and_new_names_of_the_rotation_mean_the_same(tmp_path):
    scaling = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    new = tiny_model_folder("llama", tmp_path / "new", rope_parameters=dict(LLAMA3_ROPE))
    old = tiny_model_folder(
        "llama", tmp_path / "old", rope_parameters=None, rope_theta=10_000.0, rope_scaling=scaling
    )

    assert load_model_config(new) == load_model_config(old)
    assert load_model_config(new).rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)


@pytest.mark.parametrize(
    ("family", "overrides", "window_tokens"),
    [
        ("llama", {"sliding_window": 24}, 0),
        ("mistral", {"sliding_window": 24}, 24),
        ("mistral", {"sliding_window": None}, 0),
        ("qwen2", {"sliding_window": 24}, 0),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 0}, 24),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 2}, 0),
        ("qwen3", {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 4096),
    ],
)
def test_the_window_follows_the_family(family, overrides, window_tokens, tmp_path):
    folder = tiny_model_folder(family, tmp_path, **overrides)

    assert load_model_config(folder).window_tokens == window_tokens


def test_end_tokens_come_from_the_generation_configuration_first(tmp_path):
    folder = tiny_model_folder("llama", tmp_path, eos_token_id=7)
    assert load_model_config(folder).end_token_ids == (7,)

    (folder / "generation_config.json").write_text('{"eos_token_id": [9, 5, 9]}')
    assert load_model_config(folder).end_token_ids == (5, 9)

    (folder / "generation_config.json").write_text("{}")
    assert load_model_config(folder).end_token_ids == (7,)


def test_end_tokens_that_no_model_can_generate_are_left_out(tmp_path):
    folder = tiny_model_folder("llama", tmp_path, eos_token_id=-1)
    assert load_model_config(folder).end_token_ids == ()

    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [2, -1, 512, {2**70}]}}')
    assert load_model_config(folder).end_token_ids == (2,)


def test_more_end_tokens_than_a_sequence_may_have_are_refused(tmp_path):
    folder = tiny_model_folder("llama", tmp_path, vocab_size=2048)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [*range(600)]}))

    with pytest.raises(ModelError, match="600 end tokens"):
        load_model_config(folder)


def test_a_configuration_of_more_layers_than_a_model_has_is_refused_before_they_are_listed(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4_000_000}))

    with pytest.raises(ModelError, match="num_hidden_layers"):
        load_model_config(folder)


def _load(folder):
    return load_decoder(
        folder, load_model_config(folder), positions=64, dtype=torch.float32, device=torch.device("cpu")
    )


def _shard(folder, shards):
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    files = {name: f"model-{index % shards}.safetensors" for index, name in enumerate(weights)}
    for file_name in set(files.values()):
        part = {name: weights[name] for name in weights if files[name] == file_name}
        save_file(part, folder / file_name)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder
