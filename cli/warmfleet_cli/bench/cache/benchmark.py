"""Runs `bench cache`: time and memory of generation with a KV cache and without one.

Imports torch: loaded only when the benchmark runs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmfleet_cli.bench.cache.first_token import NEW_TOKENS, measure_first_tokens
from warmfleet_cli.bench.cache.generation import Comparison, arena_blocks, compare_generation
from warmfleet_cli.bench.cache.models import BenchModel
from warmfleet_cli.bench.cache.reference import transformers_step
from warmfleet_cli.bench.cache.results import CacheResults, FirstTokens, KvSize
from warmfleet_cli.bench.client import benchmark_client
from warmfleet_cli.bench.fleet import WorkerShape, bench_fleet
from warmfleet_cli.bench.observer import Observer
from warmfleet_cli.bench.processes import run_to_end
from warmfleet_cli.bench.variants import Variant
from warmfleet_cli.bench.workload import ordinary_tokens
from warmfleet_contracts.prompts.encoder import PromptEncoder
from warmfleet_worker.model_store.assets import load_prompt_assets
from warmfleet_worker.runner.runner import load_runner
from warmfleet_worker.runner.runner_settings import RunnerSettings
from warmfleet_worker.runner.torch_model import DTYPES

PROMPT_TEXT: Final = (
    "The lighthouse keeper had kept a diary for forty years. On the first page of the last volume she wrote:"
)
"""The prompt of the compared generations."""

_WORKER_PROMPTS: Final = 4
"""Whole prompts that the worker's KV cache holds: the warm one is never the oldest of them."""


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """One `bench cache`."""

    model: BenchModel
    generated_tokens: int = 500
    cached_prompt_tokens: int = 1008
    """Shared beginning of the warm prompts: the multiple of the block size above 1,000."""
    repeats: int = 20
    """Cold and warm requests, each."""
    block_size_tokens: int = 16
    threads: int = 1
    seed: int = 0


def run_cache_bench(settings: CacheSettings, log_folder: Path, observer: Observer) -> CacheResults:
    """Measure generation in this process, then time to first token over HTTP.

    Raises:
        BenchError: a server does not start, a request fails, or a step computes values that are not finite.
        ModelError: the model's files are damaged or not supported.
        PromptError: its tokenizer or template cannot be used.
    """
    prompt = PromptEncoder.from_assets(load_prompt_assets(settings.model.path)).encode_text(PROMPT_TEXT)
    kv_size, reference_name, comparison = _compare(settings, prompt, observer)
    return CacheResults(
        comparison=comparison,
        kv_size=kv_size,
        block_size_tokens=settings.block_size_tokens,
        first_tokens=run_to_end(_first_tokens(settings, log_folder, observer)),
        reference_name=reference_name,
    )


def _compare(
    settings: CacheSettings, prompt: list[int], observer: Observer
) -> tuple[KvSize, str, Comparison]:
    """KV per token, the reference's name, and the comparison. Blocks the event loop."""
    observer.stage("Loading the model", 1)
    model, block_size = settings.model, settings.block_size_tokens
    blocks = arena_blocks(len(prompt), settings.generated_tokens, block_size)
    arena_bytes = blocks * block_size * model.kv_shape.bytes_per_token
    runner = load_runner(
        model.path,
        RunnerSettings(
            kv_cache_bytes=arena_bytes,
            block_size_tokens=block_size,
            dtype=model.dtype,
            threads=settings.threads,
        ),
    )
    kv_size = KvSize(
        layers=model.kv_shape.layers,
        kv_heads=model.kv_shape.kv_heads,
        head_dim=model.kv_shape.head_dim,
        element_bytes=model.kv_shape.element_bytes,
        # Given exactly the bytes of the formula, an arena with anything more per token has fewer blocks.
        arena_bytes_per_token=arena_bytes / (runner.total_blocks * block_size),
    )
    name, reference = transformers_step(model.path, DTYPES[model.dtype]) or ("", None)
    observer.advance()
    observer.stage("Generating with and without a KV cache", settings.generated_tokens)
    comparison = Comparison(prompt_tokens=len(prompt))
    done = 0
    for comparison in compare_generation(
        runner, prompt, steps=settings.generated_tokens, block_size_tokens=block_size, reference=reference
    ):
        observer.advance(len(comparison.cached.token_ids) - done)
        done = len(comparison.cached.token_ids)
    return kv_size, name, comparison


async def _first_tokens(settings: CacheSettings, log_folder: Path, observer: Observer) -> FirstTokens:
    prompt_tokens = settings.cached_prompt_tokens + NEW_TOKENS
    blocks_per_prompt = prompt_tokens // settings.block_size_tokens + 1
    block_bytes = settings.block_size_tokens * settings.model.kv_shape.bytes_per_token
    shape = WorkerShape(
        model_path=settings.model.path,
        served_name=settings.model.served_name,
        kv_cache_bytes=_WORKER_PROMPTS * blocks_per_prompt * block_bytes,
        block_size_tokens=settings.block_size_tokens,
        dtype=settings.model.dtype,
        max_model_length_tokens=min(prompt_tokens + settings.block_size_tokens, settings.model.max_position),
        threads=settings.threads,
    )
    variant = Variant("LowestCost")
    observer.stage("Starting a worker and a router", 1)
    async with (
        benchmark_client() as client,
        bench_fleet(shape, workers=1, variants=[variant], client=client, log_folder=log_folder) as fleet,
    ):
        observer.advance()
        observer.stage("Time to first token, cold and cached", 2 * (settings.repeats + 1))
        return await measure_first_tokens(
            client,
            fleet.router_urls[variant][0],
            model=shape.served_name,
            cached_prompt_tokens=settings.cached_prompt_tokens,
            repeats=settings.repeats,
            vocabulary=ordinary_tokens(settings.model.vocabulary_size),
            seed=settings.seed,
            on_answer=observer.advance,
        )
