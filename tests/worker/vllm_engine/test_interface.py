"""What vLLM is given and what is read of it is in a recording; `make check-vllm` compares it with vLLM."""

import ast
import inspect
import json
import re
from pathlib import Path

import pytest

from warmfleet_testing.documents.documents import REPOSITORY
from warmfleet_worker.engine.messages import AddSequences, NewSequence, packed_tokens
from warmfleet_worker.engine.sampling_params import SamplingParameters
from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine import kv_events
from warmfleet_worker.vllm_engine.arguments import engine_arguments
from warmfleet_worker.vllm_engine.cpu import executor
from warmfleet_worker.vllm_engine.cpu.worker import PROMPT_LOGPROBS
from warmfleet_worker.vllm_engine.sampling import sampling_arguments

RECORDED = json.loads((Path(__file__).parent / "recorded_interface.json").read_text())
ENGINE = Path(kv_events.__file__).parent
ADAPTER = ast.parse((ENGINE / "llm.py").read_text())
CPU_WORKER = ast.parse((ENGINE / "cpu" / "worker.py").read_text())


def keywords(function):
    """Names of the arguments that the adapter passes by name in calls that end in `function`."""
    calls = [node for node in ast.walk(ADAPTER) if isinstance(node, ast.Call)]
    found = [call for call in calls if ast.unparse(call.func).endswith(function)]
    assert found
    return {keyword.arg for call in found for keyword in call.keywords if keyword.arg}


def attributes(owner, tree=ADAPTER):
    """What the adapter, or another module, reads of a variable or expression."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    found = {node.attr for node in nodes if ast.unparse(node.value) == owner}
    assert found
    return found


def test_vllm_takes_each_engine_argument():
    settings = EngineSettings(
        model_path="/m", block_size_tokens=32, max_batched_tokens=8, device_memory_percent=1
    )
    for on_cpu in (False, True):
        given = engine_arguments(settings, on_cpu=on_cpu) | {
            "kv_cache_memory_bytes": 1,
            "kv_events_config": None,
        }
        assert set(given) <= set(RECORDED["structures"]["AsyncEngineArgs"])


def test_vllms_executor_takes_a_step_as_the_engine_core_gives_it():
    names = RECORDED["functions"]["UniProcExecutor.execute_model"]
    made = executor.timed(object).execute_model
    assert list(inspect.signature(made).parameters)[1:] == names == ["scheduler_output", "non_block"]


def test_vllm_takes_each_sampling_argument():
    message = AddSequences(
        sequences=[NewSequence(1)], prompt=packed_tokens([1]), sampling=SamplingParameters()
    )
    given = {*sampling_arguments(message, seed=0, vocabulary_size=100), *keywords("SamplingParams")}
    assert given <= set(RECORDED["structures"]["SamplingParams"])


@pytest.mark.parametrize(
    ("call", "function"),
    [
        ("AsyncLLM.from_engine_args", "AsyncLLM.from_engine_args"),
        ("_llm.generate", "AsyncLLM.generate"),
        ("reset_prefix_cache", "AsyncLLM.reset_prefix_cache"),
        ("_llm.shutdown", "AsyncLLM.shutdown"),
        ("tokens_input", "tokens_input"),
    ],
)
def test_a_function_of_vllm_takes_what_the_adapter_passes(call, function):
    assert keywords(call) <= set(RECORDED["functions"][function])


def test_events_are_configured_by_fields_that_there_are():
    assert keywords("KVEventsConfig") <= set(RECORDED["structures"]["KVEventsConfig"])


@pytest.mark.parametrize(
    ("variable", "structure"),
    [
        ("statistics", "SchedulerStats"),
        ("step", "SchedulerIterationDetails"),
        ("choice", "CompletionOutput"),
        ("score", "Logprob"),
    ],
)
def test_the_adapter_reads_fields_that_there_are(variable, structure):
    assert attributes(variable) <= set(RECORDED["structures"][structure])


@pytest.mark.parametrize(
    ("owner", "structure"),
    [
        ("config", "VllmConfig"),
        ("model", "ModelConfig"),
        ("cache", "CacheConfig"),
        ("scheduler", "SchedulerConfig"),
        ("iteration", "IterationStats"),
        ("current_platform", "current_platform"),
        ("RequestOutputKind", "RequestOutputKind"),
    ],
)
def test_the_adapter_reads_members_that_there_are_and_all_that_are_recorded(owner, structure):
    assert attributes(owner) == set(RECORDED["members"][structure])


def test_the_adapter_calls_what_vllms_engine_has():
    known = {*RECORDED["members"]["AsyncLLM"]} | {
        name.removeprefix("AsyncLLM.") for name in RECORDED["functions"] if name.startswith("AsyncLLM.")
    }
    assert attributes("self._llm") <= known


@pytest.mark.parametrize(
    ("owner", "structure"),
    [
        ("self", "CPUWorker"),
        ("runner", "CPUModelRunner"),
        ("runner.input_batch", "InputBatch"),
        ("runner.discard_request_mask", "CpuGpuBuffer"),
    ],
)
def test_the_worker_of_a_cpu_reads_members_that_there_are(owner, structure):
    assert attributes(owner, CPU_WORKER) == set(RECORDED["members"][structure])


def test_vllms_worker_of_a_cpu_samples_as_ours_does():
    [made] = [
        node
        for node in ast.walk(CPU_WORKER)
        if isinstance(node, ast.FunctionDef) and node.name == "sample_tokens"
    ]
    names = [argument.arg for argument in made.args.args][1:]
    assert names == RECORDED["functions"]["CPUWorker.sample_tokens"]


def test_vllms_runner_takes_a_slice_of_a_prompt_as_it_takes_the_whole():
    [made] = [
        node for node in ast.walk(CPU_WORKER) if isinstance(node, ast.FunctionDef) and node.name == "slices"
    ]
    names = [argument.arg for argument in made.args.args]
    assert names == RECORDED["functions"][f"CPUModelRunner.{PROMPT_LOGPROBS}"]


def test_a_dead_core_and_a_failed_request_are_errors_that_differ():
    dead, failed = (RECORDED["ancestors"][name] for name in ("EngineDeadError", "EngineGenerateError"))
    assert "Exception" in dead
    assert "Exception" in failed
    assert not {"ValueError", "EngineGenerateError"} & set(dead)
    assert "EngineDeadError" not in failed


def test_vllms_parser_is_one_of_the_standard_library():
    assert "ArgumentParser" in RECORDED["ancestors"]["FlexibleArgumentParser"]


@pytest.mark.parametrize("page", ["vllm.md", "migrating.md"])
def test_a_page_names_vllms_own_share_of_a_device(page):
    percent = round(100 * RECORDED["defaults"]["gpu_memory_utilization"])
    text = (REPOSITORY / "docs" / "how-to" / page).read_text(encoding="utf-8")

    [named] = re.findall(r"deviceMemoryPercent: .*vLLM's default is (\d+)$", text, re.MULTILINE)

    assert int(named) == percent


def test_outputs_have_what_the_adapter_reads():
    assert attributes("output") <= set(RECORDED["functions"]["RequestOutput"])


@pytest.mark.parametrize(
    ("method", "function"),
    [
        ("__init__", "StatLoggerBase"),
        ("record", "StatLoggerBase.record"),
        ("log_engine_initialized", "StatLoggerBase.log_engine_initialized"),
    ],
)
def test_statistics_are_recorded_with_vllms_parameters(method, function):
    [statistics] = [
        node for node in ast.walk(ADAPTER) if isinstance(node, ast.ClassDef) and node.name == "Statistics"
    ]
    [made] = [node for node in statistics.body if isinstance(node, ast.FunctionDef) and node.name == method]
    assert [argument.arg for argument in made.args.args][1:] == RECORDED["functions"][function]


@pytest.mark.parametrize("event", [kv_events.BlockStored, kv_events.BlockRemoved, kv_events.AllBlocksCleared])
def test_the_fields_of_an_event_are_vllms(event):
    assert set(event.__struct_fields__) <= set(RECORDED["structures"][event.__name__])


def test_a_batch_of_events_is_the_array_that_vllm_sends():
    assert list(kv_events.EventBatch.__struct_fields__) == RECORDED["structures"]["KVEventBatch"]
