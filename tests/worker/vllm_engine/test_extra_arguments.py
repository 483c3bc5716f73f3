"""vLLM's own flags: read by its parser, given to it beside ours, and refused where the two contradict."""

import argparse
import json
from pathlib import Path

import pytest

from warmfleet_testing.vllm.stand_in import facts
from warmfleet_worker.settings import EngineSettings, parse_settings
from warmfleet_worker.vllm_engine import extra_arguments
from warmfleet_worker.vllm_engine.arguments import UnfitSettingsError, engine_arguments
from warmfleet_worker.vllm_engine.extra_arguments import with_extra_arguments
from warmfleet_worker.vllm_engine.outputs import ModelFacts
from warmfleet_worker.vllm_engine.process import engine_ready

RECORDED = json.loads((Path(__file__).parent / "recorded_interface.json").read_text())
OURS = engine_arguments(EngineSettings(model_path="/m", block_size_tokens=32), on_cpu=True)

MODEL: ModelFacts = facts()


def parser():
    """As vLLM's: its types, a default for each option."""
    made = argparse.ArgumentParser(prog="vLLM", usage="", add_help=False, allow_abbrev=False)
    made.add_argument("--max-model-len", type=int)
    made.add_argument("--max-num-batched-tokens", type=int)
    made.add_argument("--num-gpu-blocks-override", type=int)
    made.add_argument("--shutdown-timeout", type=lambda text: int(float(text)))
    made.add_argument("--block-size", type=int, choices=[16, 32, 64], default=16)
    made.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    made.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction, default=False)
    made.add_argument("--trust-remote-code", action=argparse.BooleanOptionalAction, default=False)
    made.add_argument("--kv-events-config", type=json.loads)
    made.add_argument("--disable-log-stats", action="store_true")
    made.add_argument("--log-config-file")
    made.add_argument("--logging-config", type=json.loads)
    made.add_argument("--quantization", "-q", default=None)
    made.add_argument("--served-model-name", nargs="+")
    made.add_argument("--data-parallel-size", type=int)
    made.add_argument("--data-parallel-rank", type=int)
    made.add_argument("--data-parallel-size-local", type=int)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--hf-overrides", type=json.loads, default={})
    return made


def given(*words, ours=OURS):
    return with_extra_arguments(ours, words, parser())


def test_only_what_is_given_is_added_and_none_of_the_parsers_defaults():
    assert given() == OURS
    words = ("--quantization", "fp8", "--hf-overrides", '{"a": 1}', "--seed=7")
    assert given(*words) == {**OURS, "quantization": "fp8", "hf_overrides": {"a": 1}, "seed": 7}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--nope", "3"], "unrecognized arguments: --nope 3"),
        (["--max-model", "3"], "unrecognized arguments: --max-model 3"),
        (["word"], "unrecognized arguments: word"),
        (["--seed", "x"], "argument --seed: invalid int value: 'x'"),
        (["--seed"], "argument --seed: expected one argument"),
        (["--block-size", "17"], "argument --block-size: invalid choice: 17"),
        (["--shutdown-timeout", "1e999"], "cannot convert float infinity to integer"),
        (["--hf-overrides", "{"], "argument --hf-overrides: invalid loads value: '{'"),
        (["--config", "/file"], "unrecognized arguments: --config"),
        (["--help"], "unrecognized arguments: --help"),
    ],
)
def test_what_vllms_parser_does_not_take_is_refused_with_its_reason(words, reason):
    with pytest.raises(UnfitSettingsError) as refusal:
        given(*words)
    assert str(refusal.value).startswith(f"engine.extraArgs: vLLM refuses them: {reason}")


@pytest.mark.parametrize(
    ("words", "flag", "field"),
    [
        (["--block-size", "64"], "--block-size 64", "kvCache.blockSizeTokens, which makes it 32"),
        (["--num-gpu-blocks-override", "9"], "--num-gpu-blocks-override 9", "kvCache.size: set kvCache.size"),
        (["--max-model-len", "9"], "--max-model-len 9", "engine.maxModelLengthTokens"),
        (["--max-num-batched-tokens", "9"], "--max-num-batched-tokens 9", "engine.maxBatchedTokens: set"),
        (["-tp", "2"], "--tensor-parallel-size 2", "accelerator.count, which makes it 1"),
        (["--trust-remote-code"], "--trust-remote-code True", "warmfleet, which sets none: a model is data"),
        (["--served-model-name", "a", "b"], "--served-model-name ['a', 'b']", "model.servedNames: set"),
        *(
            ([f"--data-parallel-{name}", "1"], f"--data-parallel-{name} 1", "warmfleet, which sets none: the")
            for name in ("size", "rank", "size-local")
        ),
        (["--kv-events-config", "{}"], "--kv-events-config {}", "warmfleet, which sets none: routers know"),
        (["--log-config-file", "/f"], "--log-config-file '/f'", "warmfleet, which sets none: such a file"),
        (["--logging-config", "{}"], "--logging-config {}", "warmfleet, which sets none: such a file"),
    ],
)
def test_a_contradiction_names_the_flag_and_what_it_contradicts(words, flag, field):
    with pytest.raises(UnfitSettingsError) as refusal:
        given("--seed", "1", *words)
    assert f"engine.extraArgs: {flag} contradicts {field}" in str(refusal.value)


def test_a_flag_with_the_value_of_its_field_is_no_contradiction():
    assert given("--block-size", "32", "--disable-log-stats", "-tp", "1") == OURS
    named = {**OURS, "served_model_name": "qwen"}
    assert given("--served-model-name", "qwen", ours=named) == named


def test_what_is_only_our_default_may_be_set_otherwise():
    assert OURS["enforce_eager"] is True
    assert given("--no-enforce-eager")["enforce_eager"] is False


def test_each_option_that_we_claim_is_one_of_vllms():
    claimed = {*extra_arguments._FIELDS, *extra_arguments._REFUSED, *extra_arguments._DEFAULTS}
    assert claimed <= set(RECORDED["structures"]["AsyncEngineArgs"])
    # What we set is either claimed or vLLM's for the settings: nothing may be set twice in silence.
    assert set(OURS) <= claimed


def identity(model=MODEL, **settings):
    return engine_ready(model, EngineSettings(model_path="/m", **settings), "00" * 32).identity


def test_version_flags_and_devices_are_part_of_the_cache_identity():
    made = [
        identity(),
        identity(extra_arguments=("--seed", "1")),
        identity(extra_arguments=("--seed", "2")),
        identity(extra_arguments=("--seed1",)),
        identity(tensor_parallel_size=2),
        identity(facts(vllm_version=f"{MODEL.vllm_version}.1")),
    ]
    assert len(set(made)) == len(made)
    assert identity(extra_arguments=("--seed", "1")) == made[1]


def test_a_worker_passes_words_on_and_bounds_them():
    flags = ["--model", "m", "--engine-type", "VLLM", "--tensor-parallel-size", "2"]
    words = ("--hf-overrides", '{"a b": "$(C)"}')
    engine = parse_settings([*flags, *(f"--engine-argument={word}" for word in words)], {}).engine
    assert (engine.extra_arguments, engine.tensor_parallel_size) == (words, 2)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--engine-argument=--seed=1"], "arguments are vLLM's, and --engine-type is Warmfleet"),
        (["--tensor-parallel-size", "2"], "the engine Warmfleet computes on one device"),
        (["--engine-type", "VLLM", *["--engine-argument=a"] * 65], "65 of at most 64"),
        (["--engine-type", "VLLM", f"--engine-argument={'a' * 513}"], "expected 1 to 512 characters"),
        (["--engine-type", "VLLM", "--engine-argument="], "expected 1 to 512 characters"),
    ],
)
def test_a_worker_refuses_what_its_engine_does_not_take(flags, reason, capsys):
    with pytest.raises(SystemExit):
        parse_settings(["--model", "m", *flags], {})
    assert reason in capsys.readouterr().err
