"""Rounding explains every difference between an engine and the reference, and no fault of a kernel.

The reference itself is compared with transformers in float64, whose code it shares nothing with.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from warmfleet_testing.engine.runner_driver import load_runner_on
from warmfleet_testing.engine.tiny_models import TINY_FAMILIES, tiny_model_folder
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model.loader import load_decoder
from warmfleet_worker.native.formats import WeightFormat
from warmfleet_worker.native.levels import Level
from warmfleet_worker.native.library import native_library
from warmfleet_worker.parity import measurement
from warmfleet_worker.parity.__main__ import main
from warmfleet_worker.parity.comparison import EngineTrace, compare, trace_greedily
from warmfleet_worker.parity.reference import Reference
from warmfleet_worker.parity.rounding import Units, factor, units_of
from warmfleet_worker.runner.runner_settings import RunnerSettings
from warmfleet_worker.runner.torch_model import DTYPES

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

CPU = torch.device("cpu")
PROMPT = [(11 + 37 * index) % 512 for index in range(45)]
ANSWER_TOKENS = 8
TOKENS = len(PROMPT) + ANSWER_TOKENS - 1
WINDOWED = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0}
MODELS = [
    *[pytest.param(family, {}, id=family) for family in TINY_FAMILIES],
    pytest.param("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}, id="MQA tied"),
    pytest.param("llama", {"attention_bias": True}, id="bias"),
    pytest.param("qwen3", WINDOWED, id="norms and window"),
]
DTYPES_BY_TORCH = ("Float32", "BFloat16", "Float16", "Float64")
ENGINES = [
    *(("cpu", dtype, "Torch") for dtype in DTYPES_BY_TORCH),
    *(("cpu", dtype, "Auto") for dtype in ("Float32", "BFloat16")),
    *(pytest.param("cuda", dtype, "Auto", marks=pytest.mark.gpu) for dtype in DTYPES_BY_TORCH),
]


def decoder_of(folder: Path, dtype: str = "Float32"):
    config = load_model_config(folder)
    return load_decoder(folder, config, positions=1024, dtype=DTYPES[dtype], device=CPU)


def reference_of(folder: Path, dtype: str) -> Reference:
    return Reference(decoder_of(folder, dtype), TOKENS)


def traced(folder: Path, dtype: str, chunks=(17, 1, 27), device="cpu", kernels="Auto") -> EngineTrace:
    settings = RunnerSettings(kv_cache_bytes=2**20, dtype=dtype, threads=1, cpu_kernels=kernels, poison=True)
    runner = load_runner_on(device, folder, settings)
    return trace_greedily(
        runner.step_model, PROMPT, chunks, answer_tokens=ANSWER_TOKENS, block_ids=(7, 2, 5, 0, 3)
    )


@torch.inference_mode()
def compared(trace: EngineTrace, reference: Reference, dtype: str):
    return compare(trace, reference, units_of(DTYPES[dtype]))


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_the_reference_is_what_transformers_computes_in_float64(family, tmp_path):
    folder = tiny_model_folder(family, tmp_path)
    reference = reference_of(folder, "Float64")
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    token_ids = PROMPT + PROMPT[: ANSWER_TOKENS - 1]

    with torch.inference_mode():
        hidden = reference.embedded(token_ids)
        for layer in reference.layers():
            hidden = reference.after(layer, hidden)
        theirs = oracle(torch.tensor([token_ids])).logits[0]

    # Its table of rotations is in float32.
    torch.testing.assert_close(reference.logits(hidden), theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("family", "overrides"), MODELS)
@pytest.mark.parametrize(("device", "dtype", "kernels"), ENGINES)
def test_rounding_explains_every_layer_of_a_sound_engine(family, overrides, device, dtype, kernels, tmp_path):
    folder = tiny_model_folder(family, tmp_path, **overrides)
    trace, reference = traced(folder, dtype, device=device, kernels=kernels), reference_of(folder, dtype)

    shares = shares_of(compared(trace, reference, dtype))

    assert list(shares) == ["embedding", "0", "1", "head"]
    assert max(shares.values()) <= 1, shares
    assert shares["embedding"] == 0
    if dtype not in {"BFloat16", "Float16"}:
        return
    # A bound that is far too wide would explain faults, too.
    assert min(shares["0"], shares["1"]) > 0.02
    if has_wide_activations(device, kernels):
        assert shares_of(compared(trace, reference, "Float32"))["head"] <= 1
    else:
        assert shares["head"] > 0.02


def shares_of(found):
    return {layer.name: layer.of_bound for layer in found.layers}


def has_wide_activations(device, kernels):
    """Whether activations are in float32 beside weights of any dtype: a head does not round them then.

    Those of a layer are, as keys and values.
    """
    native = device == "cpu" and kernels == "Auto"
    return native and Level.AVX512_BF16 not in native_library().levels(WeightFormat.BF16)


def test_whole_and_chunked_prefills_are_compared_alike(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    reference = reference_of(folder, "Float32")
    for chunks in ((45,), (1,) * 45):
        found = compared(traced(folder, "Float32", chunks), reference, "Float32")
        assert max(layer.of_bound for layer in found.layers) <= 1


def worst(found):
    return {layer.name for layer in found.layers if not layer.of_bound <= 1}


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
@pytest.mark.parametrize(
    ("faulty", "layers"),
    [
        pytest.param(
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}, {"0", "1"}, id="RoPE"
        ),
        pytest.param({"rms_norm_eps": 0.1}, {"0"}, id="epsilon of the norm"),
    ],
)
def test_an_engine_that_computes_another_formula_is_found(faulty, layers, dtype, tmp_path):
    sound = tiny_model_folder("llama", tmp_path / "sound")
    wrong = tiny_model_folder("llama", tmp_path / "wrong", **faulty)  # the same weights

    found = compared(traced(wrong, dtype), reference_of(sound, dtype), dtype)

    assert layers <= worst(found)


@pytest.mark.parametrize("dtype", ["Float32", "BFloat16"])
def test_a_window_that_is_one_token_too_long_is_found(dtype, tmp_path):
    sound = tiny_model_folder("mistral", tmp_path / "sound", sliding_window=20)
    wrong = tiny_model_folder("mistral", tmp_path / "wrong", sliding_window=21)

    found = compared(traced(wrong, dtype), reference_of(sound, dtype), dtype)

    assert worst(found) & {"0", "1"}


@pytest.mark.parametrize(("layer", "token", "name"), [(0, 3, "embedding"), (1, 20, "0"), (2, 50, "1")])
def test_one_wrong_value_is_found_in_its_layer(layer, token, name, tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    trace = traced(folder, "Float32")
    hidden = trace.hidden.clone()
    hidden[layer, token, 5] *= 1.01

    found = compared(trace._replace(hidden=hidden), reference_of(folder, "Float32"), "Float32")

    assert name in worst(found)


def test_a_value_that_is_none_is_not_explained_and_has_a_number_in_json(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    trace = traced(folder, "BFloat16")
    logits = trace.logits.clone()
    logits[2, 7] = torch.nan

    found = compared(trace._replace(logits=logits), reference_of(folder, "BFloat16"), "BFloat16")

    assert worst(found) == {"head"}
    assert all(layer.own_difference < float("inf") for layer in found.layers)


def test_the_first_token_that_differs_is_named_with_the_gap(tmp_path):
    folder = tiny_model_folder("llama", tmp_path)
    trace = traced(folder, "Float32")
    reference = reference_of(folder, "Float32")
    same = compared(trace, reference, "Float32")
    assert same.divergence is None
    assert same.smallest_gap > 0

    runner_up = int(trace.logits[-1].topk(2).indices[1])
    other = compared(
        trace._replace(token_ids=[*trace.token_ids[:-1], runner_up]), reference, "Float32"
    ).divergence

    assert other is not None
    assert (other.index, other.engine_token_id) == (ANSWER_TOKENS - 1, runner_up)
    assert other.reference_token_id == trace.token_ids[-1]
    best = trace.logits[-1].topk(2).values
    assert other.gap == pytest.approx(float(best[0] - best[1]), abs=1e-3)
    assert other.difference < 1e-3


def test_the_bound_follows_the_epsilon_and_the_number_of_values():
    assert units_of(torch.bfloat16).stored == pytest.approx(2**-8)
    assert units_of(torch.bfloat16).summed == units_of(torch.float32).summed == pytest.approx(2**-24)
    assert units_of(torch.float64) == Units(2**-52, 2**-52)
    assert factor(1) == pytest.approx(6.54, abs=0.01)
    assert factor(10**9) == pytest.approx(9.2, abs=0.05)
    assert replace(units_of(torch.float32), summed=1.0).stored < 1e-7


def test_a_model_that_cannot_be_compared_is_refused_with_the_reason(tmp_path, monkeypatch, capsys):
    folder = tiny_model_folder("llama", tmp_path)
    (folder / "model.safetensors").write_bytes(b"no weights")

    assert main(["--model", str(folder)]) == 2
    assert "model.safetensors" in capsys.readouterr().err
    monkeypatch.setattr(measurement, "memory_limit_bytes", lambda: 2**20)
    assert main(["--model", str(folder)]) == 2
    assert "with a reference beside it the engine needs" in capsys.readouterr().err
