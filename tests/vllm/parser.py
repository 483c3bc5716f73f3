"""vLLM's own parser beside the fields of a ModelDeployment: run by the interpreter that has vLLM.

    .venv-vllm/bin/python tests/vllm/parser.py

Writes one line of JSON: the answer of `with_extra_arguments` to each flag that has the value of its field, ""
where it is taken, and to each flag of data parallelism.
"""

import json
import sys
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from warmfleet_worker.settings import EngineSettings
from warmfleet_worker.vllm_engine.arguments import UnfitSettingsError, engine_arguments
from warmfleet_worker.vllm_engine.extra_arguments import with_extra_arguments

COMMON = {
    "model_path": "/models/m", "served_name": "qwen", "dtype": "BFloat16", "block_size_tokens": 32,
    "max_model_length_tokens": 512, "max_batched_tokens": 1024,
}  # fmt: skip
SETTINGS = (
    EngineSettings(**COMMON, kv_cache_bytes=2**30),
    EngineSettings(**COMMON, device_memory_percent=90, prefix_caching=False),
)
PARALLEL = {
    "data_parallel_backend": "mp",
    "data_parallel_hybrid_lb": True,
    "data_parallel_external_lb": True,
    "data_parallel_multi_port_external_lb": True,
}
"""Values of those that take no number."""


def answer(arguments: dict[str, Any], words: list[str]) -> str:
    parser = FlexibleArgumentParser(prog="vLLM", usage="", add_help=False, allow_abbrev=False)
    try:
        taken = with_extra_arguments(arguments, words, AsyncEngineArgs.add_cli_args(parser))
    except UnfitSettingsError as error:
        return str(error)
    return "" if taken == arguments else f"changes {arguments} to {taken}"


def words_of(name: str, value: object) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}={value}"]


def described() -> dict[str, dict[str, str]]:
    equal = {}
    for settings in SETTINGS:
        arguments = engine_arguments(settings, on_cpu=True)
        for name, value in arguments.items():
            words = words_of(name, value)
            equal[words[0]] = answer(arguments, words)
    parallel = {
        field: answer(engine_arguments(SETTINGS[0], on_cpu=True), words_of(field, PARALLEL.get(field, 1)))
        for field in AsyncEngineArgs.__dataclass_fields__
        if field.startswith("data_parallel_")
    }
    return {"equal": equal, "parallel": parallel}


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(described()) + "\n")
