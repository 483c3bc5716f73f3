"""From a ModelDeployment to the flags of its workers: the same for a local fleet and for a cluster.

A field that equals its default gets no flag: the worker has the same default. So a release that adds a
field changes the arguments, and with them the pods, only where the field is set.
"""

from collections.abc import Iterator
from typing import Final

from warmfleet_contracts.resources.fields import Resource
from warmfleet_contracts.resources.model_deployment import EngineSpec, ModelDeployment, ModelDeploymentSpec

FIELD_FLAGS: Final = (
    ("--engine-type", "engine", "type"),
    ("--dtype", "engine", "dtype"),
    ("--weight-quantization", "engine", "weight_quantization"),
    ("--block-size-tokens", "kv_cache", "block_size_tokens"),
    ("--max-model-length-tokens", "engine", "max_model_length_tokens"),
    ("--max-running-sequences", "engine", "max_running_sequences"),
    ("--max-batched-tokens", "engine", "max_batched_tokens"),
    ("--target-step-milliseconds", "engine", "target_step_milliseconds"),
    ("--verify-hits", "engine", "verify_hits"),
    ("--drain-seconds", "rollout", "drain_timeout_seconds"),
    ("--prewarm-seconds", "rollout", "prewarm_timeout_seconds"),
)
"""Flags of a worker for one field each: flag, part of the spec, field. A test compares both defaults."""

VLLM_FIELD_FLAGS: Final = (("--startup-seconds", "rollout", "startup_timeout_seconds"),)
"""The same of workers with vLLM alone: others take no such time, and keep their pods."""


def worker_flags(
    deployment: ModelDeployment, *, model_path: str, host: str, port: int, uid: str, threads: int
) -> tuple[str, ...]:
    """Arguments of `python -m warmfleet_worker`. They hold no secret.

    Args:
        deployment: without any of `unsupported_engine_fields`.
        model_path: the model's folder, as the worker sees it.
        host: address to listen on.
        port: port to listen on.
        uid: identity that the worker proves to routers.
        threads: CPU threads; 0 means all cores.
    """
    spec = deployment.spec
    flags: dict[str, object] = {"--model": model_path, "--host": host, "--port": port, "--uid": uid}
    if spec.kv_cache.size_bytes is None:
        flags["--device-memory-percent"] = spec.kv_cache.device_memory_percent
    else:
        flags["--kv-cache-bytes"] = spec.kv_cache.size_bytes
    for flag, part, field in (*FIELD_FLAGS, *(VLLM_FIELD_FLAGS if spec.engine.type == "VLLM" else ())):
        section: Resource = getattr(spec, part)
        if section.differs(field):
            flags[flag] = getattr(section, field)
    if threads:
        flags["--threads"] = threads
    arguments = [text for flag, value in flags.items() for text in (flag, str(value))]
    for served_name in deployment.served_names:
        arguments += ["--served-name", served_name]
    if spec.kv_cache.prefix_caching == "Disabled":
        arguments.append("--no-prefix-caching")
    return tuple(arguments)


def extra_flags(engine: EngineSpec) -> tuple[str, ...]:
    """More arguments of a worker: what its engine gets as it is."""
    return tuple(f"--engine-argument={argument}" for argument in engine.extra_args)


def unsupported_engine_fields(spec: ModelDeploymentSpec) -> Iterator[tuple[str, str]]:
    """Fields that are valid and that no worker can honour yet: their path, and what is allowed instead."""
    is_vllm = spec.engine.type == "VLLM"
    if is_vllm and spec.engine.weight_quantization != "None":
        problem = f"{spec.engine.weight_quantization} is what the engine Warmfleet does; allowed: None"
        yield "spec.engine.weightQuantization", f"{problem}, and vLLM's --quantization in engine.extraArgs"
    elif spec.accelerator is not None and spec.engine.weight_quantization != "None":
        problem = f"{spec.engine.weight_quantization} is computed on CPUs alone"
        yield "spec.engine.weightQuantization", f"{problem}; allowed with an accelerator: None"
    if spec.kv_cache.dtype != "Auto":
        problem = f"{spec.kv_cache.dtype} is not available yet; allowed: Auto"
        advice = ", and vLLM's --kv-cache-dtype in engine.extraArgs" if is_vllm else ""
        yield "spec.kvCache.dtype", problem + advice
