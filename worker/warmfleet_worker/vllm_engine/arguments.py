"""vLLM's engine arguments for a worker's settings. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_contracts.openai import MAX_TOP_LOGPROBS
from warmfleet_worker.settings import BLOCK_SIZES, EngineSettings
from warmfleet_worker.vllm_engine.cpu import executor, worker

CPU_BLOCK_TOKENS: Final = 32
"""vLLM's attention on a CPU takes multiples of it."""
SPIN_COUNT: Final = "10000"
"""How often a thread of OpenMP asks for its next part before it sleeps: about 0.1 ms.

A step has some hundred parallel parts, and waking a thread for each takes up to half of the step; a much
higher count takes the cores from the other processes of the machine.
"""
_DTYPES: Final = {
    "Float32": "float32",
    "BFloat16": "bfloat16",
    "Float16": "float16",
    "Float64": "float64",
}


class UnfitSettingsError(WarmfleetError):
    """vLLM cannot run with these settings on this machine."""


def engine_arguments(settings: EngineSettings, *, on_cpu: bool) -> dict[str, Any]:
    """Arguments of vLLM's `AsyncEngineArgs`, without those of its cache events.

    Raises:
        UnfitSettingsError: they contradict what vLLM computes here.
    """
    block_size_tokens = settings.block_size_tokens
    if on_cpu and block_size_tokens % CPU_BLOCK_TOKENS:
        *others, last = (str(size) for size in BLOCK_SIZES if size % CPU_BLOCK_TOKENS == 0)
        possible = f"{', '.join(others)} or {last}"
        raise UnfitSettingsError(
            f"vLLM's blocks on a CPU are multiples of {CPU_BLOCK_TOKENS} tokens, not {block_size_tokens}: "
            f"set kvCache.blockSizeTokens (--block-size-tokens) to {possible}"
        )
    arguments: dict[str, Any] = {
        "model": settings.model_path,
        "dtype": _dtype(settings.dtype, on_cpu=on_cpu),
        # As much as the KV cache holds, where the model allows more.
        "max_model_len": settings.max_model_length_tokens or -1,
        "block_size": block_size_tokens,
        "max_num_seqs": settings.max_running_sequences,
        "enable_prefix_caching": settings.prefix_caching,
        "max_logprobs": MAX_TOP_LOGPROBS,
        # Prompts come as token ids and go back as such.
        "skip_tokenizer_init": True,
        # Prefixes that no client waits for come after all others.
        "scheduling_policy": "priority",
        "disable_log_stats": True,
        "enable_logging_iteration_details": True,
        "generation_config": "vllm",
        "tensor_parallel_size": settings.tensor_parallel_size,
    }
    if settings.served_name:
        arguments["served_model_name"] = settings.served_name
    if settings.max_batched_tokens:
        arguments["max_num_batched_tokens"] = settings.max_batched_tokens
    if settings.device_memory_percent:
        arguments["gpu_memory_utilization"] = settings.device_memory_percent / 100
    else:
        arguments["kv_cache_memory_bytes"] = settings.kv_cache_bytes
    if on_cpu:
        # Compiling takes minutes, and a CPU's steps are bound by memory.
        arguments["enforce_eager"] = True
        arguments["worker_cls"] = worker.NAME
        if settings.tensor_parallel_size == 1:
            # With a process of its own for the worker the engine core polls shared memory while a step
            # computes, on a core that the step needs.
            arguments["distributed_executor_backend"] = executor.NAME
    return arguments


ALWAYS: Final[Mapping[str, str]] = {
    # Several processes share the cores of a machine.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Variables of every process with vLLM, a benchmark's too."""


def environment(settings: EngineSettings) -> dict[str, str]:
    """Variables that vLLM reads at its import, where the user has set none."""
    variables = {
        # Its processes are bound to this one by the module that it started with, which a fork would skip.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        **ALWAYS,
        # Read by libgomp, which PyTorch brings; it comes before OMP_WAIT_POLICY.
        "GOMP_SPINCOUNT": SPIN_COUNT,
    }
    if settings.threads:
        variables["OMP_NUM_THREADS"] = str(settings.threads)
    return variables


def _dtype(dtype: str, *, on_cpu: bool) -> str:
    # On a CPU without units for it, vLLM's bfloat16 gives nonsense.
    return _DTYPES.get(dtype, "float32" if on_cpu else "auto")
