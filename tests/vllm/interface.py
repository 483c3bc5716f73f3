"""What warmfleet uses of vLLM, as JSON: run by the interpreter that has vLLM.

    .venv-vllm/bin/python tests/vllm/interface.py

Parameters of functions and fields of structures by name, in order. `tests/worker/vllm_engine` has a
recording; `make check-vllm` compares it with the vLLM that is installed.
"""

import dataclasses
import inspect
import json
import sys
from typing import Any

import vllm
from vllm import SamplingParams
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import tokens_input
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.prometheus import get_prometheus_registry
from vllm.v1.metrics.stats import SchedulerIterationDetails, SchedulerStats

FUNCTIONS = {
    "AsyncEngineArgs.add_cli_args": AsyncEngineArgs.add_cli_args,
    "AsyncLLM.from_engine_args": AsyncLLM.from_engine_args,
    "AsyncLLM.generate": AsyncLLM.generate,
    "AsyncLLM.reset_prefix_cache": AsyncLLM.reset_prefix_cache,
    "AsyncLLM.shutdown": AsyncLLM.shutdown,
    "StatLoggerBase.record": StatLoggerBase.record,
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
    "SamplingParams": SamplingParams,
    "SchedulerIterationDetails": SchedulerIterationDetails,
    "SchedulerStats": SchedulerStats,
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
    "KVEventBatch": KVEventBatch,
}


def described() -> dict[str, Any]:
    """Version, parameters and fields."""
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
        "properties": {"AsyncLLM.errored": isinstance(AsyncLLM.errored, property)},
    }


def fields(structure: Any) -> list[str]:
    """Names of the fields of a dataclass or msgspec struct."""
    if dataclasses.is_dataclass(structure):
        return [field.name for field in dataclasses.fields(structure)]
    return list(structure.__struct_fields__)


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(described(), indent=1) + "\n")
