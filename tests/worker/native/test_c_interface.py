"""What Python declares of the C library is what its headers have, and the C compiles without a warning."""

import ctypes
import subprocess
from dataclasses import fields
from typing import get_args

import pytest

from warmfleet_testing.engine.tiny_models import TINY_FAMILIES, tiny_model_folder
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.model.config import FAMILIES, ModelConfig, load_model_config
from warmfleet_worker.model.shapes import expected_shapes
from warmfleet_worker.native import build, library, model
from warmfleet_worker.native.build import SOURCES, compile_library, compiler
from warmfleet_worker.native.formats import KvElement, WeightFormat
from warmfleet_worker.native.layer_tensors import LAYER_TENSORS
from warmfleet_worker.native.levels import Level
from warmfleet_worker.settings import CpuKernels

STRUCTS = {
    "wf_job": library.JobStruct,
    "wf_layer": library.LayerStruct,
    "wf_model": library.ModelStruct,
    "wf_step_arguments": library.StepStruct,
    "wf_sampling": library.SamplingStruct,
}
CONSTANTS = {
    **{f"WF_WEIGHTS_{weights.name}": int(weights) for weights in WeightFormat},
    "WF_FORMATS": len(WeightFormat),
    **{f"WF_{element.name}": int(element) for element in KvElement},
    "WF_ELEMENTS": len(KvElement),
    **{f"WF_{level.name}": int(level) for level in Level},
    "WF_LEVELS": len(Level),
    "WF_LANES": model.GROUP_TOKENS,
    "WF_MAX_HEAD_DIM": model.MAX_HEAD_DIM,
}
JUDGED = {
    *("hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim", "vocab_size"),
    *("norm_epsilon", "window_tokens", "rope_theta", "rope_scaling", "max_position", "tied_embeddings"),
    *("qkv_bias", "output_bias", "query_key_norm"),
}
"""What the native step computes by. Without effect on a step: how a sequence ends, the family's name."""
OUTSIDE_THE_STEP = {
    *("logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty"),  # runner/penalties.py,
    *("min_output_tokens", "stop_token_ids"),  # which bars these until then
    *("max_output_tokens", "logprobs", "prompt_logprobs"),
}
"""Sampling parameters that change logits before the step's sampler, or that are of the engine."""


@pytest.fixture(scope="module")
def of_c(tmp_path_factory) -> dict[str, int]:
    """Sizes, offsets and constants, as the C compiler has them."""
    folder = tmp_path_factory.mktemp("interface")
    values = [f"sizeof({name})" for name in STRUCTS]
    values += [f"offsetof({name}, {field[0]})" for name, kind in STRUCTS.items() for field in kind._fields_]
    lines = [f'printf("%s=%lld\\n", "{value}", (long long)({value}));' for value in [*values, *CONSTANTS]]
    source = folder / "interface.c"
    includes = '#include <stddef.h>\n#include <stdio.h>\n#include "kernels.h"\n#include "stepper.h"\n'
    source.write_text(f"{includes}int main(void) {{{''.join(lines)}}}")
    program = folder / "interface"
    subprocess.run([*compiler(), f"-I{SOURCES}", str(source), "-o", str(program)], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in (line.rsplit("=", 1) for line in printed.splitlines())}


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_has_the_layout_of_the_header(of_c, name):
    kind = STRUCTS[name]

    assert ctypes.sizeof(kind) == of_c[f"sizeof({name})"]
    offsets = {field[0]: getattr(kind, field[0]).offset for field in kind._fields_}
    assert offsets == {field: of_c[f"offsetof({name}, {field})"] for field in offsets}


def test_constants_have_the_values_of_the_header(of_c):
    assert {name: of_c[name] for name in CONSTANTS} == CONSTANTS


def test_the_list_of_a_layers_tensors_is_that_of_the_header(of_c):
    names = [tensor.name for tensor in LAYER_TENSORS]

    assert names == sorted(names, key=lambda name: of_c[f"offsetof(wf_layer, {name})"])
    assert of_c["sizeof(wf_layer)"] == ctypes.sizeof(ctypes.c_void_p) * len(names)


def test_every_source_is_compiled():
    assert {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.c")} == set(build.COMPILED)


def test_every_level_can_be_asked_for_by_name():
    names = {level.option for level in Level}

    assert names == set(get_args(CpuKernels)) - {"Auto", "Torch"}


def test_a_new_property_of_a_model_has_to_be_computed_or_refused():
    """A field that is added for PyTorch would otherwise be ignored by the native step without a word."""
    assert {field.name for field in fields(ModelConfig)} - JUDGED == {"architecture", "end_token_ids"}


def test_a_new_sampling_parameter_has_to_be_handed_to_the_native_step_or_be_known_to_act_outside_it():
    """One that only PyTorch's sampler reads would otherwise have no effect by default."""
    handed_over = {name for name, _ in library.SamplingStruct._fields_} - {"output_index", "reserved"}

    assert set(SamplingParameters.__struct_fields__) - handed_over == OUTSIDE_THE_STEP


def test_a_familys_tensors_are_those_that_the_native_step_takes(tmp_path):
    """One that is only loaded for PyTorch would otherwise be left out of the native step without a word."""
    of_layers, architectures = set(), set()
    for family in TINY_FAMILIES:
        for biases in (False, True):
            folder = tiny_model_folder(family, tmp_path / f"{family} {biases}", attention_bias=biases)
            config = load_model_config(folder)
            architectures.add(config.architecture)
            of_layers |= {
                name.removeprefix("model.layers.0.")
                for name in expected_shapes(config)
                if name.startswith("model.layers.0.")
            }

    assert architectures == set(FAMILIES)
    assert of_layers == {name for tensor in LAYER_TENSORS for name in tensor.names}


def test_the_sources_compile_without_a_warning(tmp_path):
    compile_library(tmp_path / "library.so", [*compiler(), "-Wall", "-Wextra", "-Wshadow", "-Werror"])

    assert (tmp_path / "library.so").is_file()
