"""The tables and lines that a benchmark prints."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from warmfleet_cli.bench.cache.results import CacheResults
from warmfleet_cli.bench.engine.results import OWN_INT8, EngineResults
from warmfleet_cli.bench.figures import Spread, median
from warmfleet_cli.bench.prefix.results import VariantSummary


@dataclass(frozen=True, slots=True)
class TextTable:
    """Cells as text; a column whose name begins with ">" is aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def prefix_table(summaries: Sequence[VariantSummary]) -> TextTable:
    """One row per policy and number of routers.

    With several runs a figure is their mean, followed by the lowest and highest run.
    """
    columns = (
        "policy", ">routers", ">success", ">reused/reusable tokens", ">share reused", ">TTFT mean ms",
        ">TTFT p90 ms", ">predicted = actual",
    )  # fmt: skip
    return TextTable(
        columns,
        [
            (
                summary.variant.policy,
                str(summary.variant.routers),
                f"{summary.success_ratio:.1%}",
                f"{summary.reused_tokens:,}/{summary.reusable_tokens:,}",
                _spread(summary.reuse_ratio, 100, ".1f", summary.runs, "%"),
                _spread(summary.first_token_mean_seconds, 1000, ",.0f", summary.runs),
                _spread(summary.first_token_p90_seconds, 1000, ",.0f", summary.runs),
                f"{summary.predictions_equal}/{summary.predictions}",
            )
            for summary in summaries
        ],
    )


def generation_table(results: CacheResults) -> TextTable:
    """Medians of the time per token, and the KV memory, for each fifth of the generation; then the sums."""
    comparison, size = results.comparison, results.kv_size
    steps = len(comparison.cached.token_ids)
    block_bytes = size.arena_bytes_per_token * results.block_size_tokens
    edges = sorted({round(part * steps / 5) for part in range(6)})
    rows = [
        (
            f"{first + 1} to {last}",
            f"{1e3 * median(comparison.cached.step_seconds[first:last]):.1f}",
            f"{1e3 * median(comparison.uncached.step_seconds[first:last]):.1f}",
            f"{comparison.cached.held_blocks[last - 1] * block_bytes / 2**20:.2f}",
        )
        for first, last in itertools.pairwise(edges)
    ]
    rows.append(
        ("in all, seconds", f"{comparison.cached.seconds:.1f}", f"{comparison.uncached.seconds:.1f}", "")
    )
    return TextTable(("generated tokens", ">with cache ms/token", ">without ms/token", ">KV held MiB"), rows)


def cache_lines(results: CacheResults) -> list[str]:
    """The lines below the table: the reference, time to first token, KV per token."""
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


def engine_table(results: EngineResults) -> TextTable:
    """A row per case and engine; of the limit, and of reads alone, is by the median step."""
    rows = []
    for one in results.measured:
        limit = one.case.tokens / results.limit_seconds(one.engine, one.case)
        figures = (
            (
                f"{one.tokens_per_second:,.1f}",
                f"{one.case.tokens / one.least_seconds:,.1f}",
                f"{1e3 * one.median_seconds:,.1f}",
                f"{ratio:.0%}" if (ratio := results.limit_ratio(one)) <= 1 else "above it",
                f"{of_reads:.0%}" if (of_reads := results.reads_ratio(one)) is not None else "-",
                one.variant,
            )
            if one.seconds
            else ("-", "-", "-", "-", "-", one.error)
        )
        rows.append((one.case.name, one.engine, *figures[:3], f"{limit:,.0f}", *figures[3:]))
    rows += [(case, "all", *"------", reason) for case, reason in results.skipped.items()]
    rows += [("all", engine, *"------", reason) for engine, reason in results.missing.items()]
    columns = (
        "step", "engine", ">tokens/s median", ">best", ">ms/step", ">limit tokens/s", ">of the limit",
        ">of reads alone", "fastest with",
    )  # fmt: skip
    return TextTable(columns, rows)


def engine_lines(results: EngineResults) -> list[str]:
    """What the limits are, and what ran."""
    limits = results.limits
    int8 = f" {OWN_INT8} reads {results.costs[OWN_INT8].weight_bytes / 1e6:,.0f} MB of weights."
    return [
        *(f"{engine}: {version}" for engine, version in results.versions.items()),
        (
            f"Limits: {limits.read_bytes_per_second / 1e9:.1f} GB/s read by "
            f"{limits.gpu or f'{limits.read_threads} threads'} in "
            f"{limits.buffer_bytes / 2**30:.2g} GiB "
            f"(before {results.limits_before.read_bytes_per_second / 1e9:.1f}, "
            f"after {results.limits_after.read_bytes_per_second / 1e9:.1f}); "
            f"{limits.bfloat16_flops_per_second / 1e12:.2f} TFLOPS bfloat16, "
            f"{limits.float32_flops_per_second / 1e12:.2f} float32."
        ),
        *(f"Limits not trusted: {doubt}." for doubt in results.limit_doubts),
        (
            f"A decode reads {results.cost.weight_bytes / 1e6:,.0f} MB of weights and "
            f"{results.cost.kv_bytes_per_token:,} bytes per token of context, in "
            f"{results.cost.element_bytes} bytes each; the limit is the same for engines that hold more."
            f"{int8 if OWN_INT8 in results.versions else ''}"
        ),
    ]


def _spread(spread: Spread, factor: float, form: str, runs: int, unit: str = "") -> str:
    mean, low, high = (format(factor * value, form) for value in (spread.mean, spread.low, spread.high))
    return f"{mean}{unit}" if runs == 1 else f"{mean}{unit} ({low}..{high})"
