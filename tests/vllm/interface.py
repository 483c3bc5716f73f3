"""What warmfleet uses of vLLM, as JSON: run by the interpreter that has vLLM.

    .venv-vllm/bin/python tests/vllm/interface.py

Parameters of functions and fields of structures by name, in order; members of other classes, as far as they
are used; ancestors of classes that are caught or handed on; defaults that the documentation names.
`tests/worker/vllm_engine/recorded_interface.json` has the recording, which this writes:

    .venv-vllm/bin/python tests/vllm/interface.py tests/worker/vllm_engine/recorded_interface.json

`make check-vllm` compares it with the vLLM that is installed.
"""

import ast
import dataclasses
import inspect
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import vllm
from vllm import SamplingParams
from vllm.config import (
    CacheConfig,
    KVEventsConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import tokens_input
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.prometheus import get_prometheus_registry
from vllm.v1.metrics.stats import IterationStats, SchedulerIterationDetails, SchedulerStats
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_input_batch import InputBatch

from warmfleet_worker.vllm_engine.cpu.worker import PROMPT_LOGPROBS

FUNCTIONS = {
    "AsyncEngineArgs.add_cli_args": AsyncEngineArgs.add_cli_args,
    "AsyncLLM.from_engine_args": AsyncLLM.from_engine_args,
    "AsyncLLM.generate": AsyncLLM.generate,
    "AsyncLLM.reset_prefix_cache": AsyncLLM.reset_prefix_cache,
    "AsyncLLM.shutdown": AsyncLLM.shutdown,
    "CPUWorker.sample_tokens": CPUWorker.sample_tokens,
    f"CPUModelRunner.{PROMPT_LOGPROBS}": getattr(CPUModelRunner, PROMPT_LOGPROBS),
    "StatLoggerBase": StatLoggerBase.__init__,
    "StatLoggerBase.record": StatLoggerBase.record,
    "StatLoggerBase.log_engine_initialized": StatLoggerBase.log_engine_initialized,
    "UniProcExecutor.execute_model": UniProcExecutor.execute_model,
    "RequestOutput": RequestOutput.__init__,
    "get_prometheus_registry": get_prometheus_registry,
    "kv_cache_dtype_str_to_dtype": kv_cache_dtype_str_to_dtype,
    "tokens_input": tokens_input,
}
STRUCTURES = {
    "AsyncEngineArgs": AsyncEngineArgs,
    "CompletionOutput": CompletionOutput,
    "KVEventsConfig": KVEventsConfig,
    "Logprob": Logprob,
    "SamplingParams": SamplingParams,
    "SchedulerIterationDetails": SchedulerIterationDetails,
    "SchedulerStats": SchedulerStats,
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
    "KVEventBatch": KVEventBatch,
}
MEMBERS: dict[str, tuple[type, tuple[str, ...]]] = {
    "AsyncLLM": (AsyncLLM, ("errored", "vllm_config")),
    "CacheConfig": (CacheConfig, ("block_size", "cache_dtype", "num_gpu_blocks")),
    "ModelConfig": (
        ModelConfig,
        (
            "dtype", "get_head_size", "get_num_layers", "get_sliding_window", "get_total_num_kv_heads",
            "get_vocab_size", "hf_text_config", "max_model_len", "try_get_generation_config",
        ),
    ),
    "SchedulerConfig": (SchedulerConfig, ("async_scheduling", "max_num_batched_tokens", "max_num_seqs")),
    "VllmConfig": (
        VllmConfig,
        ("cache_config", "model_config", "parallel_config", "scheduler_config"),
    ),
    "IterationStats": (IterationStats, ("num_preempted_reqs",)),
    "RequestOutputKind": (RequestOutputKind, ("DELTA",)),
    "current_platform": (type(current_platform), ("device_type", "is_cpu")),
    # Of a worker on a CPU: see vllm_engine/cpu/worker.py.
    "CPUWorker": (CPUWorker, ("model_runner",)),
    "CPUModelRunner": (
        CPUModelRunner,
        ("discard_request_mask", "input_batch", "model_config", "num_prompt_logprobs", "requests"),
    ),
    "InputBatch": (InputBatch, ("generators", "num_reqs")),
    "CpuGpuBuffer": (CpuGpuBuffer, ("np",)),
}  # fmt: skip
ANCESTORS = (EngineDeadError, EngineGenerateError, FlexibleArgumentParser, UniProcExecutor)


def described() -> dict[str, Any]:
    """Version, parameters, fields, members, ancestors and defaults."""
    return {
        "version": vllm.__version__,
        "functions": {
            name: [
                parameter.name
                for parameter in inspect.signature(function).parameters.values()
                if parameter.name != "self"
            ]
            for name, function in FUNCTIONS.items()
        },
        "structures": {name: fields(structure) for name, structure in STRUCTURES.items()},
        "members": {
            name: [member for member in used if hasattr(owner, member) or member in assigned(owner)]
            for name, (owner, used) in MEMBERS.items()
        },
        "ancestors": {one.__name__: [ancestor.__name__ for ancestor in one.__mro__[1:]] for one in ANCESTORS},
        "properties": {"AsyncLLM.errored": isinstance(AsyncLLM.errored, property)},
        "defaults": {"gpu_memory_utilization": AsyncEngineArgs.gpu_memory_utilization},
    }


def fields(structure: Any) -> list[str]:
    """Names of the fields of a dataclass or msgspec struct."""
    if dataclasses.is_dataclass(structure):
        return [field.name for field in dataclasses.fields(structure)]
    return list(structure.__struct_fields__)


def assigned(owner: type) -> set[str]:
    """Names that the methods of a class, or of one that it derives from, assign to its objects."""
    found: set[str] = set()
    for ancestor in owner.__mro__:
        if ancestor.__module__.startswith("vllm."):
            found.update(getattr(ancestor, "__annotations__", ()))
            tree = ast.parse(textwrap.dedent(inspect.getsource(ancestor)))
            found |= {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            }
    return found


if __name__ == "__main__":
    text = json.dumps(described(), indent=1) + "\n"
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    sys.stdout.write("\n" + text)
