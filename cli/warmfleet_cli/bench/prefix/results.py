"""Results of `bench prefix`: per run, per policy, targets and chart."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from warmfleet_cli.bench.charts import Bar, BarPanel, render_bars
from warmfleet_cli.bench.client import Answer
from warmfleet_cli.bench.figures import Spread, Target, mean, percentile
from warmfleet_cli.bench.variants import Prediction, Variant

ONE_ROUTER_REUSE_PERCENT = 95.0
TWO_ROUTERS_REUSE_PERCENT = 90.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of the workload under one variant."""

    variant: Variant
    answers: Sequence[Answer]
    reusable_tokens: int
    """Tokens that one infinite cache would have served, in order of arrival."""
    predictions: Sequence[Prediction]
    rate_per_second: float
    """Mean rate at which the requests were due."""
    seconds: float
    """From the start of the run to the last answer."""

    @property
    def success_ratio(self) -> float:
        return mean([float(answer.succeeded) for answer in self.answers])

    @property
    def reused_tokens(self) -> int:
        return sum(answer.cached_tokens for answer in self.answers)

    @property
    def reuse_ratio(self) -> float:
        """Reused of reusable; 1 for a workload in which nothing can be reused."""
        return self.reused_tokens / self.reusable_tokens if self.reusable_tokens else 1.0

    @property
    def first_token_seconds(self) -> list[float]:
        return [answer.first_token_seconds for answer in self.answers if answer.succeeded]


@dataclass(frozen=True, slots=True)
class VariantSummary:
    """All runs of one variant together."""

    variant: Variant
    runs: int
    requests: int
    success_ratio: float
    reused_tokens: int
    reusable_tokens: int
    reuse_ratio: Spread
    first_token_mean_seconds: Spread
    """Over the runs' means."""
    first_token_p90_seconds: Spread
    """Over the runs' 90th percentiles."""
    predictions: int
    """Requests whose decision held both a prediction and the worker's answer."""
    predictions_equal: int
    predicted_tokens: int
    actual_tokens: int


def summarise(runs: Sequence[RunResult]) -> list[VariantSummary]:
    """One summary per variant, in the order in which the variants first ran."""
    by_variant: dict[Variant, list[RunResult]] = {}
    for run in runs:
        by_variant.setdefault(run.variant, []).append(run)
    return [_summary(variant, members) for variant, members in by_variant.items()]


def _summary(variant: Variant, runs: Sequence[RunResult]) -> VariantSummary:
    predictions = [prediction for run in runs for prediction in run.predictions]
    answers = [answer for run in runs for answer in run.answers]
    return VariantSummary(
        variant=variant,
        runs=len(runs),
        requests=len(answers),
        success_ratio=mean([float(answer.succeeded) for answer in answers]),
        reused_tokens=sum(run.reused_tokens for run in runs),
        reusable_tokens=sum(run.reusable_tokens for run in runs),
        reuse_ratio=Spread.over([run.reuse_ratio for run in runs]),
        first_token_mean_seconds=Spread.over([mean(run.first_token_seconds) for run in runs]),
        first_token_p90_seconds=Spread.over([percentile(run.first_token_seconds, 90) for run in runs]),
        predictions=len(predictions),
        predictions_equal=sum(each.predicted_tokens == each.actual_tokens for each in predictions),
        predicted_tokens=sum(each.predicted_tokens for each in predictions),
        actual_tokens=sum(each.actual_tokens for each in predictions),
    )


def prefix_targets(runs: Sequence[RunResult]) -> list[Target]:
    """What `bench prefix` must reach: every request answered, and LowestCost's share of the reusable.

    A share is judged over all runs of its variant together.
    """
    answers = [answer for run in runs for answer in run.answers]
    targets = [
        Target(
            "requests answered", 100 * mean([float(answer.succeeded) for answer in answers]), 100, unit=" %"
        )
    ]
    for summary in summarise(runs):
        if summary.variant.policy != "LowestCost":
            continue
        required = ONE_ROUTER_REUSE_PERCENT if summary.variant.routers == 1 else TWO_ROUTERS_REUSE_PERCENT
        targets.append(
            Target(
                f"{summary.variant.label}: share of reusable tokens reused",
                100 * summary.reused_tokens / max(summary.reusable_tokens, 1),
                required,
                unit=" %",
            )
        )
    return targets


def prefix_chart(summaries: Sequence[VariantSummary]) -> str:
    """Share reused and mean time to first token per variant, as SVG."""
    share, first_token = [], []
    for summary in summaries:
        label = summary.variant.label
        ratio, seconds = summary.reuse_ratio, summary.first_token_mean_seconds
        share.append(Bar(label, 100 * ratio.mean, 100 * ratio.low, 100 * ratio.high))
        first_token.append(Bar(label, 1e3 * seconds.mean, 1e3 * seconds.low, 1e3 * seconds.high))
    return render_bars(
        "Reuse and time to first token by routing policy",
        [
            BarPanel("reused of reusable prompt tokens", " %", share),
            BarPanel("mean time to first token", " ms", first_token),
        ],
    )


def run_record(run: RunResult) -> dict[str, Any]:
    """One run for the JSON report."""
    return {
        "policy": run.variant.policy,
        "routers": run.variant.routers,
        "requests": len(run.answers),
        "success_ratio": run.success_ratio,
        "reused_tokens": run.reused_tokens,
        "reusable_tokens": run.reusable_tokens,
        "reuse_ratio": run.reuse_ratio,
        "first_token_mean_seconds": mean(run.first_token_seconds),
        "first_token_p90_seconds": percentile(run.first_token_seconds, 90),
        "rate_per_second": run.rate_per_second,
        "seconds": run.seconds,
        "predictions": len(run.predictions),
        "predicted_tokens": sum(each.predicted_tokens for each in run.predictions),
        "actual_tokens": sum(each.actual_tokens for each in run.predictions),
        "errors": [answer.error for answer in run.answers if answer.error],
    }
