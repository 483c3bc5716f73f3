"""The commands `warmfleet bench prefix`, `cache`, `engine` and `load`.

Exit code 0: every target was reached, every request answered; 1: not; the others are those of every command.
"""

import asyncio
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from warmfleet_cli.bench.cache.results import cache_record, cache_targets, memory_chart, time_chart
from warmfleet_cli.bench.engine.model import RandomShape
from warmfleet_cli.bench.engine.results import engine_charts, engine_record, engine_targets
from warmfleet_cli.bench.engine.run import (
    ENGINES,
    MAX_BATCH,
    MAX_CONTEXT_TOKENS,
    EngineChoice,
    bench_model,
)
from warmfleet_cli.bench.fleet import WorkerShape
from warmfleet_cli.bench.load import LoadShape, find_target, run_load
from warmfleet_cli.bench.machine import others_remark
from warmfleet_cli.bench.prefix.benchmark import ALL_POLICIES, PrefixSettings, run_prefix_bench
from warmfleet_cli.bench.prefix.results import prefix_chart, prefix_targets, run_record, summarise
from warmfleet_cli.bench.processes import run_to_end
from warmfleet_cli.bench.report import Report, log_folder
from warmfleet_cli.bench.tables import cache_lines, engine_lines, engine_table, generation_table, prefix_table
from warmfleet_cli.bench.workload import PrefixWorkload, ordinary_tokens
from warmfleet_cli.errors import ExitCode
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_line
from warmfleet_cli.router_client import ApiKey, Url, router_url
from warmfleet_runtime.processors import CpuUsage

BLOCK_SIZE_TOKENS: Final = 16
VLLM_BLOCK_SIZE_TOKENS: Final = 32
"""The least that vLLM takes on a CPU."""

bench_app = typer.Typer(
    no_args_is_help=True, help="Measure the gain from prefix-aware routing and the KV cache on this machine."
)


class CpuKernels(StrEnum):
    """Values of `--cpu-kernels`, as a worker has them."""

    AUTO = "Auto"
    TORCH = "Torch"
    AVX2 = "AVX2"
    AVX512 = "AVX512"
    AVX512_BF16 = "AVX512BF16"
    AMX_BF16 = "AMXBF16"


class Dtype(StrEnum):
    """Values of `--dtype`: the type of weights and KV cache."""

    AUTO = "Auto"
    FLOAT32 = "Float32"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"
    FLOAT64 = "Float64"


class EngineType(StrEnum):
    """`engine.type` of a ModelDeployment."""

    OWN = "Warmfleet"
    VLLM = "VLLM"


ModelName = Annotated[str, typer.Option("--model", help="Catalog model to run; pull it first.")]
ModelPath = Annotated[
    Path | None, typer.Option(help="Model folder to run instead of a catalog model.", exists=True)
]
OutputDir = Annotated[Path, typer.Option(help="Folder for JSON, SVG and process logs.")]
Seed = Annotated[int, typer.Option(help="Seed of prompts and arrivals.")]

DEFAULT_MODEL: Final = "smollm2-135m-instruct"
DEFAULT_FOLDER: Final = Path("bench-results")


@bench_app.command("prefix")
def prefix_command(
    *,
    model: ModelName = DEFAULT_MODEL,
    model_path: ModelPath = None,
    policies: Annotated[
        str, typer.Option(help="Comma-separated policies to compare with LowestCost, or: all.")
    ] = "LowestCost,RoundRobin",
    workers: Annotated[int, typer.Option(min=1, max=16, help="Worker processes.")] = 3,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Rounds over all policies.")] = 3,
    groups: Annotated[int, typer.Option(min=1, help="Groups of prompts that share a prefix.")] = 16,
    prompts_per_group: Annotated[int, typer.Option(min=1, help="Prompts of each group.")] = 5,
    prefix_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the shared prefix.")] = 256,
    question_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens after the prefix, different in every prompt.")
    ] = 48,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 16,
    resident_ratio: Annotated[
        float,
        typer.Option(
            min=0.01, help="All prefixes and questions, held once, as a share of the fleet's KV cache."
        ),
    ] = 0.73,
    minutes: Annotated[float, typer.Option(min=0.1, help="Duration to aim at; sets the request rate.")] = 6.0,
    dtype: Annotated[Dtype, typer.Option(help="Of weights and KV.")] = Dtype.AUTO,
    engine_type: Annotated[EngineType, typer.Option(help="What the workers compute with.")] = EngineType.OWN,
    seed: Seed = 0,
    output_dir: OutputDir = DEFAULT_FOLDER,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Compare routing policies on prompts that share prefixes.

    Example: warmfleet bench prefix --policies all
    """
    start = time.monotonic()
    from warmfleet_cli.bench.cache.models import load_bench_model  # noqa: PLC0415 - torch takes seconds

    chosen = parse_policies(policies)
    workload = PrefixWorkload(
        groups=groups,
        prompts_per_group=prompts_per_group,
        prefix_tokens=prefix_tokens,
        question_tokens=question_tokens,
        output_tokens=output_tokens,
        resident_ratio=resident_ratio,
    )
    is_vllm = engine_type is EngineType.VLLM
    block_size_tokens = VLLM_BLOCK_SIZE_TOKENS if is_vllm else BLOCK_SIZE_TOKENS
    # One of vLLM's blocks is a placeholder.
    blocks = workload.blocks_per_worker(workers, block_size_tokens) + is_vllm
    report = Report(output)
    machine, remark = report.check_machine()
    found = load_bench_model(model, model_path, dtype.value)
    settings = PrefixSettings(
        shape=WorkerShape(
            model_path=found.path,
            served_name=found.served_name,
            kv_cache_bytes=blocks * block_size_tokens * found.kv_shape.bytes_per_token,
            block_size_tokens=block_size_tokens,
            dtype=found.dtype,
            max_model_length_tokens=min(workload.prompt_tokens + workload.output_tokens, found.max_position),
            threads=max(machine.cores // workers, 1),
            engine_type=engine_type.value,
        ),
        vocabulary=ordinary_tokens(found.vocabulary_size),
        workload=workload,
        policies=chosen,
        workers=workers,
        repeats=repeats,
        time_limit_seconds=60 * minutes - (time.monotonic() - start),
        seed=seed,
    )
    report.remark(machine.line(found.dtype))
    calibration, runs = report.run(
        lambda observer: run_to_end(run_prefix_bench(settings, log_folder(output_dir), observer))
    )
    summaries = summarise(runs)
    report.finish(
        "prefix",
        output_dir,
        record={
            "machine": machine,
            "idle": remark,
            "engine_type": engine_type.value,
            "dtype": found.dtype,
            "workload": workload,
            "workers": workers,
            "calibration": calibration,
            "summaries": summaries,
            "runs": [run_record(run) for run in runs],
            "wall_seconds": time.monotonic() - start,
        },
        charts={"policies": prefix_chart(summaries)},
        table=prefix_table(summaries),
        targets=prefix_targets(runs),
    )


@bench_app.command("cache")
def cache_command(
    *,
    model: ModelName = DEFAULT_MODEL,
    model_path: ModelPath = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens to generate, with and without the cache.")] = 500,
    cached_prompt_tokens: Annotated[
        int, typer.Option(min=17, help="Tokens of the cached prefix of warm prompts.")
    ] = 1008,
    repeats: Annotated[int, typer.Option(min=1, help="Number of cold and of warm requests.")] = 20,
    dtype: Annotated[
        Dtype, typer.Option(help="Of weights and KV. Only Float32 and Float64 promise equal tokens.")
    ] = Dtype.FLOAT32,
    seed: Seed = 0,
    output_dir: OutputDir = DEFAULT_FOLDER,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Measure generation with and without a KV cache, and time to first token with a cached prompt.

    Example: warmfleet bench cache --output-dir results
    """
    start = time.monotonic()
    from warmfleet_cli.bench.cache.benchmark import CacheSettings, run_cache_bench  # noqa: PLC0415 - torch
    from warmfleet_cli.bench.cache.models import load_bench_model  # noqa: PLC0415 - torch

    report = Report(output)
    machine, remark = report.check_machine()
    found = load_bench_model(model, model_path, dtype.value)
    settings = CacheSettings(
        model=found,
        generated_tokens=tokens,
        cached_prompt_tokens=cached_prompt_tokens,
        repeats=repeats,
        threads=machine.cores,
        seed=seed,
    )
    report.remark(machine.line(found.dtype))
    results = report.run(lambda observer: run_cache_bench(settings, log_folder(output_dir), observer))
    report.finish(
        "cache",
        output_dir,
        record={
            "machine": machine,
            "idle": remark,
            "dtype": found.dtype,
            **cache_record(results),
            "wall_seconds": time.monotonic() - start,
        },
        charts={
            "time": time_chart(results.comparison, results.reference_name),
            "memory": memory_chart(results),
        },
        table=generation_table(results),
        lines=cache_lines(results),
        targets=cache_targets(results, cached_prompt_tokens=cached_prompt_tokens),
    )


@bench_app.command("engine")
def engine_command(
    *,
    model: ModelName = DEFAULT_MODEL,
    model_path: ModelPath = None,
    random_weights: Annotated[
        RandomShape | None, typer.Option(help="Instead: random weights of this shape, made for the run.")
    ] = None,
    engines: Annotated[
        str, typer.Option(help=f"Comma-separated engines to measure: {', '.join(ENGINES)}.")
    ] = "warmfleet,llama.cpp,transformers",
    batches: Annotated[str, typer.Option(help="Comma-separated sequences of a decode.")] = "1,4,8,16",
    contexts: Annotated[
        str, typer.Option(help="Comma-separated tokens before each decoded one.")
    ] = "128,4096,16384",
    prefill_tokens: Annotated[int, typer.Option(min=16, help="Tokens of the prompt of a prefill.")] = 512,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds over all engines.")] = 3,
    steps: Annotated[int, typer.Option(min=3, max=48, help="Most steps of a case in a round.")] = 16,
    dtype: Annotated[Dtype, typer.Option(help="Of weights and KV, for our engines.")] = Dtype.AUTO,
    cpu_kernels: Annotated[
        CpuKernels, typer.Option(help="Of our engines on a CPU; Auto: the best level.")
    ] = CpuKernels.AUTO,
    cpu: Annotated[
        bool, typer.Option("--cpu", help="Measure the processors, where there is a GPU too.")
    ] = False,
    output_dir: OutputDir = DEFAULT_FOLDER,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Compare the engine's steps with the limits of this machine, and with other engines on the same weights.

    Example: warmfleet bench engine --random-weights qwen3-0.6b --engines warmfleet,warmfleet-int8
    """
    start = time.monotonic()
    choice = EngineChoice(
        engines=parse_names(engines, ENGINES, "engine"),
        batches=parse_counts(batches, "--batches", most=MAX_BATCH),
        contexts=parse_counts(contexts, "--contexts", most=MAX_CONTEXT_TOKENS),
        prefill_tokens=prefill_tokens,
        rounds=rounds,
        steps=steps,
        dtype=dtype.value,
        cpu_kernels=cpu_kernels.value,
        cpu=cpu,
    )
    report = Report(output)
    machine, remark = report.check_machine()
    report.remark(machine.line(dtype.value))
    usage = CpuUsage()
    found, results = report.run(
        lambda observer: run_to_end(
            bench_model(choice, model, model_path, random_weights, log_folder(output_dir), observer)
        )
    )
    others = others_remark(usage.others_ratio())
    report.finish(
        "engine",
        output_dir,
        record={
            "machine": machine,
            "idle": remark,
            "others": others,
            "model": found,
            "rounds": rounds,
            **engine_record(results),
            "wall_seconds": time.monotonic() - start,
        },
        charts=engine_charts(results),
        table=engine_table(results),
        lines=[*engine_lines(results), others],
        targets=engine_targets(results),
    )


@bench_app.command("load")
def load_command(
    *,
    url: Url = None,
    api_key: ApiKey = "",
    model: Annotated[
        str | None, typer.Option(help="Model. Default: the first that the router lists.")
    ] = None,
    in_flight: Annotated[int, typer.Option(min=1, max=512, help="Clients, each with one request.")] = 16,
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="Duration.")] = 60.0,
    prefixes: Annotated[int, typer.Option(min=1, max=10_000, help="Prefixes that prompts share.")] = 8,
    prefix_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each of them.")] = 256,
    question_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens after the prefix, different in every prompt.")
    ] = 16,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 48,
    seed: Seed = 0,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Put load on a fleet that runs: to watch it, or to see it scale.

    Example: warmfleet bench load --in-flight 24 --seconds 120
    """
    shape = LoadShape(
        in_flight=in_flight,
        seconds=seconds,
        prefixes=prefixes,
        prefix_tokens=prefix_tokens,
        question_tokens=question_tokens,
        output_tokens=output_tokens,
        seed=seed,
    )
    target = find_target(router_url(url), model, api_key, seed)
    console = make_console(stderr=output is OutputFormat.JSON)
    print_line(console, f"{in_flight} clients ask {target.model} at {target.url} for {seconds:g} s ...")
    result = asyncio.run(run_load(target, shape))
    if output is OutputFormat.JSON:
        print_json(result.record())
    else:
        console.print("\n".join(result.lines()))
    if result.failed:
        raise typer.Exit(ExitCode.FAILED)


def parse_names(text: str, known: Sequence[str], kind: str) -> tuple[str, ...]:
    """Names of a list, in the order of `known`.

    Raises:
        typer.BadParameter: one is not known, or there is none.
    """
    asked = [name.strip() for name in text.split(",") if name.strip()]
    if not asked:
        raise typer.BadParameter(f"at least one {kind} is needed; known are: {', '.join(known)}")
    for name in asked:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is no {kind}; known are: {', '.join(known)}")
    return tuple(name for name in known if name in asked)


def parse_counts(text: str, option: str, *, most: int) -> tuple[int, ...]:
    """Ascending counts from 1 to `most`.

    Raises:
        typer.BadParameter: a part is no such number, or there is none.
    """
    try:
        counts = sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1 or counts[-1] > most:
        raise typer.BadParameter(f"{option} wants numbers from 1 to {most:,}, by commas, not {text!r}")
    return tuple(counts)


def parse_policies(text: str) -> list[str]:
    """Policies by name, LowestCost always among them and first; "all" is all of them.

    Raises:
        typer.BadParameter: a name is not a policy.
    """
    asked = ALL_POLICIES if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    for name in asked:
        if name not in ALL_POLICIES:
            raise typer.BadParameter(f"{name!r} is not a policy; policies: {', '.join(ALL_POLICIES)}")
    return list(dict.fromkeys(["LowestCost", *asked]))
