"""The tables and lines that a benchmark prints."""

import itertools
from collections.abc import Sequence

from rich.table import Table

from warmfleet_cli.bench.cache_results import CacheResults
from warmfleet_cli.bench.figures import Spread, median
from warmfleet_cli.bench.prefix_results import VariantSummary


def prefix_table(summaries: Sequence[VariantSummary]) -> Table:
    """One row per policy and number of routers; success first, because the rest means nothing without."""
    table = Table(title="bench prefix: mean over runs (lowest to highest run)")
    table.add_column("policy")
    for heading in (
        "routers", "success", "reused / reusable tokens", "share reused", "TTFT mean ms", "TTFT p90 ms",
        "predicted = actual",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for summary in summaries:
        table.add_row(
            summary.variant.policy,
            str(summary.variant.routers),
            f"{summary.success_ratio:.2%}",
            f"{summary.reused_tokens:,} / {summary.reusable_tokens:,}",
            _spread(summary.reuse_ratio, 100, ".1f", " %"),
            _spread(summary.first_token_mean_seconds, 1000, ",.0f"),
            _spread(summary.first_token_p90_seconds, 1000, ",.0f"),
            f"{summary.predictions_equal} of {summary.predictions}",
        )
    return table


def generation_table(results: CacheResults) -> Table:
    """Time per token and KV memory at every fifth of the generation."""
    comparison, size = results.comparison, results.kv_size
    steps = len(comparison.cached.token_ids)
    block_bytes = size.arena_bytes_per_token * results.block_size_tokens
    table = Table(title=f"bench cache: {steps} tokens after a prompt of {comparison.prompt_tokens}")
    for heading in ("generated tokens", "with cache ms/token", "without ms/token", "KV held MiB"):
        table.add_column(heading, justify="right")
    edges = sorted({round(part * steps / 5) for part in range(6)})
    for first, last in itertools.pairwise(edges):
        table.add_row(
            f"{first + 1} to {last}",
            f"{1e3 * median(comparison.cached.step_seconds[first:last]):.1f}",
            f"{1e3 * median(comparison.uncached.step_seconds[first:last]):.1f}",
            f"{comparison.cached.held_blocks[last - 1] * block_bytes / 2**20:.2f}",
        )
    table.add_row(
        "all, seconds",
        f"{comparison.cached.seconds:.1f}",
        f"{comparison.uncached.seconds:.1f}",
        "",
        end_section=True,
    )
    return table


def cache_lines(results: CacheResults) -> list[str]:
    """What the table does not hold: the reference, time to first token, KV per token."""
    first, log = results.first_tokens, results.comparison.reference
    reference = (
        "Uncached reference: transformers is not installed; the comparison is missing."
        if not results.reference_name
        else (
            f"Uncached reference: {results.reference_name}, one step in ten, on the same tokens "
            f"({log.lengths[0]} to {log.lengths[-1]} tokens): ours {sum(log.own_seconds):.1f} s, "
            f"theirs {sum(log.reference_seconds):.1f} s; same next token in {log.equal_tokens} of "
            f"{len(log.lengths)}."
        )
    )
    return [
        reference,
        (
            f"Time to first token at the client, prompts of {first.prompt_tokens} tokens, medians of "
            f"{len(first.cold_seconds)}: cold {1e3 * median(first.cold_seconds):.0f} ms, with "
            f"{min(first.warm_cached_tokens)} tokens cached {1e3 * median(first.warm_seconds):.0f} ms."
        ),
        (
            f"KV per token: {results.kv_size.formula()}; the arena takes "
            f"{results.kv_size.arena_bytes_per_token:,.0f}."
        ),
    ]


def _spread(spread: Spread, factor: float, form: str, unit: str = "") -> str:
    mean, low, high = (format(factor * value, form) for value in (spread.mean, spread.low, spread.high))
    return f"{mean}{unit} ({low} to {high})"
