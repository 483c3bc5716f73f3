"""From the command's options to what is measured: the engines, the cases that fit this machine, the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmfleet_cli.bench.engine.benchmark import (
    EngineBenchSettings,
    blocks_of,
    cases_that_fit,
    context_memory_bytes,
    run_engine_bench,
)
from warmfleet_cli.bench.engine.cases import SPARE_TOKENS, Case, cases_of
from warmfleet_cli.bench.engine.model import EngineModel, RandomShape, engine_model
from warmfleet_cli.bench.engine.programs import (
    Program,
    llama_program,
    own_program,
    transformers_program,
    vllm_program,
)
from warmfleet_cli.bench.engine.results import OWN, OWN_INT8, OWN_QUANTIZATIONS, VLLM, EngineResults
from warmfleet_cli.bench.observer import Observer
from warmfleet_runtime.memory import available_memory_bytes
from warmfleet_runtime.processors import CPU_INFO, isa_flags
from warmfleet_worker.model.cost import model_cost
from warmfleet_worker.runner.device import free_gpu_bytes, has_gpu

ENGINES: Final = (OWN, OWN_INT8, "llama.cpp", "transformers", VLLM)
MAX_BATCH: Final = 64
MAX_CONTEXT_TOKENS: Final = 1_000_000
CASE_SECONDS: Final = 1.0
_VLLM_DTYPE_BYTES: Final = {"bfloat16": 2, "float32": 4}
_BFLOAT16_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16"})
_ELEMENT_BYTES: Final = {"Float32": 4, "Float64": 8}
"""Of those that have more than 2; what "Auto" chooses is known once the engine has started."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What the user asks for."""

    engines: tuple[str, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prefill_tokens: int
    rounds: int
    steps: int
    dtype: str
    cpu_kernels: str = "Auto"
    """Of our engines."""
    cpu: bool = False
    """On the processors, where there is a GPU too."""


async def bench_model(  # noqa: PLR0917 - a command's options
    choice: EngineChoice,
    name: str,
    folder: Path | None,
    random: RandomShape | None,
    log_folder: Path,
    observer: Observer,
) -> tuple[str, EngineResults]:
    """Measure a model; its name, and the results.

    Raises:
        BenchError: the model is not there, no engine starts, or the limits cannot be measured.
        ModelError: the model's configuration is not supported.
    """
    on_gpu = has_gpu() and not choice.cpu
    free_bytes = free_gpu_bytes() if on_gpu else available_memory_bytes() or 0
    needs_gguf = "llama.cpp" in choice.engines and not llama_program(Path(), (), on_gpu=on_gpu).missing
    async with engine_model(name, folder, random, needs_gguf=needs_gguf) as model:
        settings = bench_settings(choice, model, free_bytes, on_gpu=on_gpu)
        return model.name, await run_engine_bench(settings, log_folder, observer)


def bench_settings(
    choice: EngineChoice, model: EngineModel, available_bytes: int, *, on_gpu: bool = False
) -> EngineBenchSettings:
    """The cases that model and memory allow, and how the engines are started."""
    cost = model_cost(model.config, _ELEMENT_BYTES.get(choice.dtype, 2))
    asked = cases_of(choice.batches, choice.contexts, choice.prefill_tokens)
    within = [case for case in asked if case.context_tokens + SPARE_TOKENS <= model.config.max_position]
    memory_bytes = context_memory_bytes(
        available_bytes, cost.weight_bytes, len(choice.engines), on_gpu=on_gpu
    )
    cases, skipped = cases_that_fit(within, cost.kv_bytes_per_token, memory_bytes)
    for case in asked:
        if case not in within:
            skipped[case.name] = f"the model's limit is {model.config.max_position:,} tokens"
    return EngineBenchSettings(
        model=model.config,
        programs=[_program(engine, choice, model, cases, on_gpu=on_gpu) for engine in choice.engines],
        cases=cases,
        skipped=skipped,
        rounds=choice.rounds,
        steps=choice.steps,
        case_seconds=CASE_SECONDS,
        on_gpu=on_gpu,
        has_amx=not on_gpu and "amx_bf16" in _processor_flags(),
    )


def _program(
    engine: str, choice: EngineChoice, model: EngineModel, cases: list[Case], *, on_gpu: bool
) -> Program:
    if (quantization := OWN_QUANTIZATIONS.get(engine)) is not None:
        kernels, blocks = choice.cpu_kernels, blocks_of(cases)
        return own_program(engine, model.folder, choice.dtype, quantization, kernels, blocks)
    if engine == "llama.cpp":
        return llama_program(model.gguf, cases, on_gpu=on_gpu)
    if engine == VLLM:
        dtype = _vllm_dtype(on_gpu=on_gpu)
        kv_bytes_per_token = model_cost(model.config, _VLLM_DTYPE_BYTES[dtype]).kv_bytes_per_token
        return vllm_program(model.folder, dtype, cases, kv_bytes_per_token)
    return transformers_program(model.folder)


def _vllm_dtype(*, on_gpu: bool) -> str:
    """bfloat16 but on a CPU without units for it, where vLLM's gives nonsense."""
    return "bfloat16" if on_gpu or _BFLOAT16_FLAGS.intersection(_processor_flags()) else "float32"


def _processor_flags() -> tuple[str, ...]:
    return isa_flags(CPU_INFO.read_text(encoding="utf-8"))
