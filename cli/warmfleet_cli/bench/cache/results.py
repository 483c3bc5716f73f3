"""Results of `bench cache`: targets, charts and record."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warmfleet_cli.bench.cache.generation import Comparison
from warmfleet_cli.bench.charts import Line, LineChart, render_lines
from warmfleet_cli.bench.figures import Target, median

SPEEDUP_AT_LEAST = 4.5
WARM_FIRST_TOKEN_AT_MOST_PERCENT = 15.0


@dataclass(frozen=True, slots=True)
class KvSize:
    """How much KV one token takes: in the arena that was allocated, and by the model's shape."""

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    arena_bytes_per_token: float
    """Bytes between two blocks of the arena, over the tokens in a block."""

    @property
    def formula_bytes_per_token(self) -> int:
        """2 x layers x KV heads x head dimension x element size."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes

    def formula(self) -> str:
        return (
            f"2 x {self.layers} layers x {self.kv_heads} KV heads x {self.head_dim} dimensions"
            f" x {self.element_bytes} bytes = {self.formula_bytes_per_token:,} bytes"
        )


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Times to first token at the client, of prompts that share a cached beginning and of new ones."""

    prompt_tokens: int
    cold_seconds: Sequence[float]
    warm_seconds: Sequence[float]
    cold_cached_tokens: Sequence[int]
    """What the worker reported as cached, per cold request; all 0 if the comparison is valid."""
    warm_cached_tokens: Sequence[int]

    @property
    def warm_percent(self) -> float:
        """Median of the warm times as a percentage of the median of the cold ones."""
        return 100 * median(self.warm_seconds) / median(self.cold_seconds)


@dataclass(frozen=True, slots=True)
class CacheResults:
    """Everything that one `bench cache` measured."""

    comparison: Comparison
    kv_size: KvSize
    block_size_tokens: int
    first_tokens: FirstTokens
    reference_name: str
    """Library and version of the uncached reference; empty when it is not installed."""


def cache_targets(results: CacheResults, *, cached_prompt_tokens: int) -> list[Target]:
    """What `bench cache` must reach. Without the reference library its comparison is absent here."""
    comparison, first = results.comparison, results.first_tokens
    pairs = zip(comparison.cached.token_ids, comparison.uncached.token_ids, strict=True)
    steps = len(comparison.cached.token_ids)
    targets = [
        Target("tokens equal with and without cache", sum(a == b for a, b in pairs), steps),
        Target("speedup by the KV cache", comparison.speedup, SPEEDUP_AT_LEAST, unit=" x"),
    ]
    if comparison.reference.lengths:
        targets.append(
            Target(
                f"our uncached step against {results.reference_name}'s, median",
                comparison.reference.own_percent,
                100,
                at_least=False,
                unit=" %",
            )
        )
    # The question after the shared beginning is computed anyway, so all its full blocks can be hit.
    usable = cached_prompt_tokens // results.block_size_tokens * results.block_size_tokens
    return [
        *targets,
        Target("cached tokens in every warm prompt", min(first.warm_cached_tokens), usable),
        Target("cached tokens in any cold prompt", max(first.cold_cached_tokens), 0, at_least=False),
        Target(
            "warm time to first token, of cold",
            first.warm_percent,
            WARM_FIRST_TOKEN_AT_MOST_PERCENT,
            at_least=False,
            unit=" %",
        ),
        Target(
            "KV bytes per token off the formula",
            abs(results.kv_size.arena_bytes_per_token - results.kv_size.formula_bytes_per_token),
            0,
            at_least=False,
            unit=" bytes",
        ),
    ]


def time_chart(comparison: Comparison, reference_name: str) -> str:
    """Time per token over the number of tokens generated, as SVG."""
    lines = [
        Line("with KV cache", _milliseconds(comparison.cached.step_seconds)),
        Line("without", _milliseconds(comparison.uncached.step_seconds)),
    ]
    if comparison.reference.lengths:
        points = [
            (float(length - comparison.prompt_tokens + 1), 1e3 * seconds)
            for length, seconds in zip(
                comparison.reference.lengths, comparison.reference.reference_seconds, strict=True
            )
        ]
        lines.append(Line(f"{reference_name} without", points))
    return render_lines(LineChart("Time per generated token", "generated tokens", "ms per token", lines))


def memory_chart(results: CacheResults) -> str:
    """KV memory that has to be kept between steps, over the tokens in the sequence, as SVG."""
    comparison, size = results.comparison, results.kv_size
    block_bytes = size.arena_bytes_per_token * results.block_size_tokens
    first = comparison.prompt_tokens
    lines = [
        Line("blocks held with KV cache", _mebibytes(first, comparison.cached.held_blocks, block_bytes)),
        Line(
            "tokens x bytes per token",
            _mebibytes(
                first,
                range(first, first + len(comparison.cached.token_ids)),
                size.formula_bytes_per_token,
            ),
        ),
        Line("held without", _mebibytes(first, comparison.uncached.held_blocks, block_bytes)),
    ]
    return render_lines(LineChart("KV memory held between steps", "tokens in the sequence", "MiB", lines))


def cache_record(results: CacheResults) -> dict[str, Any]:
    """All measurements for the JSON report."""
    comparison, first = results.comparison, results.first_tokens
    return {
        "generation": {
            "prompt_tokens": comparison.prompt_tokens,
            "generated_tokens": len(comparison.cached.token_ids),
            "cached_seconds": comparison.cached.seconds,
            "uncached_seconds": comparison.uncached.seconds,
            "speedup": comparison.speedup,
            "cached_step_seconds": comparison.cached.step_seconds,
            "uncached_step_seconds": comparison.uncached.step_seconds,
            "cached_held_blocks": comparison.cached.held_blocks,
            "token_ids": comparison.cached.token_ids,
            "equal": comparison.cached.token_ids == comparison.uncached.token_ids,
        },
        "reference": {
            "name": results.reference_name or None,
            "lengths_tokens": comparison.reference.lengths,
            "own_seconds": comparison.reference.own_seconds,
            "reference_seconds": comparison.reference.reference_seconds,
            "own_percent_of_reference": comparison.reference.own_percent,
            "equal_next_tokens": comparison.reference.equal_tokens,
        },
        "first_token": {**_record_of(first), "warm_percent_of_cold": first.warm_percent},
        "kv_size": {
            "formula": results.kv_size.formula(),
            "formula_bytes_per_token": results.kv_size.formula_bytes_per_token,
            "arena_bytes_per_token": results.kv_size.arena_bytes_per_token,
            "block_size_tokens": results.block_size_tokens,
        },
    }


def _record_of(first: FirstTokens) -> dict[str, Any]:
    return {
        "prompt_tokens": first.prompt_tokens,
        "cold_median_seconds": median(first.cold_seconds),
        "warm_median_seconds": median(first.warm_seconds),
        "cold_seconds": first.cold_seconds,
        "warm_seconds": first.warm_seconds,
        "cold_cached_tokens": first.cold_cached_tokens,
        "warm_cached_tokens": first.warm_cached_tokens,
    }


def _milliseconds(step_seconds: Sequence[float]) -> list[tuple[float, float]]:
    return [(float(number), 1e3 * seconds) for number, seconds in enumerate(step_seconds, start=1)]


def _mebibytes(first: int, counts: Sequence[int], bytes_each: float) -> list[tuple[float, float]]:
    return [(float(number), count * bytes_each / 2**20) for number, count in enumerate(counts, start=first)]
