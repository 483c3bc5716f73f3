"""What `bench engine` measured, against the machine's limits: targets, table, charts, record."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warmfleet_cli.bench.charts import Bar, BarPanel, Line, LineChart, render_bars, render_lines
from warmfleet_cli.bench.engine.cases import SPARE_TOKENS, Case
from warmfleet_cli.bench.figures import Target, median
from warmfleet_worker.engine.roofline import MachineLimits, ModelCost, least_seconds
from warmfleet_worker.engine.step_time import StepShape
from warmfleet_worker.roofline.measurement import MAX_BUFFER_BYTES

OWN: Final = "warmfleet"
OWN_INT8: Final = "warmfleet-int8"
"""The same with its weights in 8 bits. In turns with the other, what memory gives is the same for both."""
OWN_QUANTIZATIONS: Final = {OWN: "None", OWN_INT8: "Int8"}
"""Of the weights in each of our engines; all others are beside them, with weights as the files have them."""
VLLM: Final = "vLLM"
READS: Final = "reads alone"
"""Beside the engines: what memory gave in their turns."""
STEADY_READS_RATIO: Final = 0.85
"""Of the limit: where memory gave less, limits from before and after do not hold for the time between."""
BESIDE_VLLM: Final = {(8, 128), (8, 1024), (1, 2048)}
"""Sequences and contexts of the steps in which a small model is compared with vLLM."""
SHORT_CONTEXT_TOKENS: Final = 1024
"""Below it a decode reads weights and hardly anything else."""
INT8_TIMES: Final = 1.6
LARGE_WEIGHTS: Final = 500_000_000
"""A model from this size on is limited by reads of its weights, not by what a step does besides."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The steps of one engine in one case."""

    engine: str
    case: Case
    variant: str
    seconds: Sequence[float]
    """Of each step; empty if it could not be computed."""
    error: str = ""

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)

    @property
    def least_seconds(self) -> float:
        return min(self.seconds, default=math.nan)

    @property
    def tokens_per_second(self) -> float:
        """By the median step."""
        return self.case.tokens / self.median_seconds


@dataclass(frozen=True, slots=True)
class EngineResults:
    """Everything that one `bench engine` measured."""

    limits_before: MachineLimits
    limits_after: MachineLimits
    costs: Mapping[str, ModelCost]
    """Of each of our engines, in the element type that they chose."""
    versions: Mapping[str, str]
    """Of each engine that ran, with its element type."""
    missing: Mapping[str, str]
    """Why other engines did not run."""
    measured: Sequence[Measured]
    skipped: Mapping[str, str]
    """Cases that were not measured, and why."""
    first_tokens: Mapping[str, Mapping[str, Sequence[int]]]
    """By case and engine: equal weights give mostly equal tokens."""
    has_amx: bool
    """Whether the processors that computed have tile registers for bfloat16, which not all engines use."""

    @property
    def limits(self) -> MachineLimits:
        """The better of both measurements."""
        return self.limits_before.best(self.limits_after)

    @property
    def cost(self) -> ModelCost:
        """Of weights that are not quantised."""
        return self.costs[OWN]

    def cost_of(self, engine: str) -> ModelCost:
        """What the model asks in an engine. One of the others has that of ours, though it may hold more."""
        return self.costs.get(engine, self.cost)

    def limit_seconds(self, engine: str, case: Case) -> float:
        """The least time of a step of this case."""
        return least_seconds(self.cost_of(engine), self.limits, step_shape(case))

    def limit_ratio(self, measured: Measured) -> float:
        """Limit over measured time, by the median step."""
        return self.limit_seconds(measured.engine, measured.case) / measured.median_seconds

    def reads_ratio(self, measured: Measured) -> float | None:
        """Time of reads alone of as many bytes, in the same turns, over measured time.

        None where nothing is known of them.
        """
        reads, shape = self.of(READS, measured.case), step_shape(measured.case)
        if reads is None:
            return None
        share = self.cost_of(measured.engine).read_bytes(shape) / self.cost.read_bytes(shape)
        return share * reads.median_seconds / measured.median_seconds

    @property
    def limit_doubts(self) -> list[str]:
        """Why the limits may not be those of the machine during the run; empty if nothing shows it."""
        doubts = []
        if self.limits.buffer_bytes < MAX_BUFFER_BYTES:
            doubts.append(
                f"memory was short: reads were measured over {self.limits.buffer_bytes / 2**30:.2g} GiB, "
                f"not {MAX_BUFFER_BYTES / 2**30:.2g}"
            )
        doubts += [
            f"{one.engine} took less than the least time of {one.case.name}"
            for one in self.measured
            if one.seconds and self.limit_ratio(one) > 1
        ]
        reads = median(
            [self.limit_ratio(one) for one in self.measured if one.engine == READS and one.seconds]
        )
        if reads < STEADY_READS_RATIO:
            doubts.append(f"reads alone reached {reads:.0%} of them in the turns of the engines")
        return doubts

    def of(self, engine: str, case: Case) -> Measured | None:
        """What one engine took in one case, if it could compute it."""
        return next(
            (one for one in self.measured if one.engine == engine and one.case == case and one.seconds), None
        )


def step_shape(case: Case) -> StepShape:
    """The shape of the case's steps; decodes add to their contexts, so some steps are in it."""
    if case.kind == "prefill":
        return StepShape(0, 0, 0).with_prefill(0, case.context_tokens)
    return StepShape.of_decodes([case.context_tokens + SPARE_TOKENS // 8] * case.batch)


def engine_targets(results: EngineResults) -> list[Target]:
    """What the engine must reach here: shares of the limit with large models, and a lead over the others."""
    is_large = results.cost.layer_weights + results.cost.head_weights >= LARGE_WEIGHTS
    limit = "a limit that is not trusted" if results.limit_doubts else "the limit"
    targets: list[Target] = []
    for own in (one for one in results.measured if one.engine == OWN and one.seconds):
        case, ratio = own.case, results.limit_ratio(own)
        share = 100 * ratio
        if case.kind == "prefill":
            targets += _against_best_peer(results, own)
            continue
        if not is_large and (case.batch, case.context_tokens) in BESIDE_VLLM:
            factor = 2.0 if results.has_amx else 1.2
            targets += _against(results, own, {VLLM: factor}, is_large=False)
        least: dict[str, float] = {}
        percent = None
        if case.batch == 1 and case.context_tokens < SHORT_CONTEXT_TOKENS:
            percent = 75
            least = {"llama.cpp": 1.5, "transformers": 3.0} if is_large else {"llama.cpp": 1.2}
        elif case.batch == 8 and case.context_tokens < SHORT_CONTEXT_TOKENS:
            percent = 60
        elif case.batch == 1 and case.context_tokens >= 16_000:
            least = {"llama.cpp": 1.7}
        elif case.batch == 1:
            percent = 65
        if is_large and percent is not None:
            targets.append(Target(f"{case.name}: of {limit}", share, percent, unit=" %"))
            if (of_reads := results.reads_ratio(own)) is not None:
                name = f"{case.name}: of {READS} in the same turns"
                targets.append(Target(name, 100 * of_reads, percent, unit=" %"))
        targets += _against(results, own, least, is_large=is_large)
    return targets + _int8_targets(results)


def _int8_targets(results: EngineResults) -> list[Target]:
    """A decode of one sequence with weights in 8 bits reads about half, beside the same engine's own type."""
    return [
        Target(
            f"{one.case.name}: in 8 bits, times {OWN}'s {own.tokens_per_second:.1f} tokens/s",
            one.tokens_per_second / own.tokens_per_second,
            INT8_TIMES,
        )
        for one in results.measured
        if one.engine == OWN_INT8 and one.seconds and one.case.kind == "decode" and one.case.batch == 1
        if one.case.context_tokens < SHORT_CONTEXT_TOKENS and (own := results.of(OWN, one.case))
    ]


def _against(
    results: EngineResults, own: Measured, least: Mapping[str, float], *, is_large: bool
) -> list[Target]:
    """So many times as fast as others, or 85 % of the limit with a large model, where that is less."""
    targets = []
    for engine, factor in least.items():
        if peer := results.of(engine, own.case):
            required = factor * peer.tokens_per_second
            if is_large:
                required = min(required, 0.85 * own.case.tokens / results.limit_seconds(OWN, own.case))
            targets.append(
                Target(
                    f"{own.case.name}: beside {engine}'s {peer.tokens_per_second:.1f}",
                    own.tokens_per_second,
                    required,
                    unit=" tokens/s",
                )
            )
    return targets


def _against_best_peer(results: EngineResults, own: Measured) -> list[Target]:
    others = [engine for engine in results.versions if engine not in OWN_QUANTIZATIONS]
    peers = [peer for engine in others if (peer := results.of(engine, own.case))]
    if not peers:
        return []
    best = max(peers, key=lambda peer: peer.tokens_per_second)
    return [
        Target(
            f"{own.case.name}: beside {best.engine}, the best of the others",
            own.tokens_per_second,
            best.tokens_per_second,
            unit=" tokens/s",
        )
    ]


def engine_charts(results: EngineResults) -> dict[str, str]:
    """Shares of the limit: over the batch for each context, and of the prefills."""
    engines = list(results.versions)
    contexts = sorted({one.case.context_tokens for one in results.measured if one.case.kind == "decode"})
    charts = {}
    for context in contexts:
        lines = [Line(engine, _shares(results, engine, context)) for engine in engines]
        title = f"Decode at context {context:,}: share of the machine's limit"
        charts[f"decode-{context}"] = render_lines(LineChart(title, "sequences", "% of the limit", lines))
    panels = [
        BarPanel(
            case.name,
            " %",
            _bars(results, case),
        )
        for case in dict.fromkeys(one.case for one in results.measured if one.case.kind == "prefill")
    ]
    return {**charts, "prefill": render_bars("Prefill: share of the machine's limit", panels)}


def engine_record(results: EngineResults) -> dict[str, Any]:
    """All measurements for the JSON report."""
    return {
        "limits": results.limits,
        "limits_before": results.limits_before,
        "limits_after": results.limits_after,
        "limit_doubts": results.limit_doubts,
        "model_costs": dict(results.costs),
        "engines": dict(results.versions),
        "missing": dict(results.missing),
        "skipped": dict(results.skipped),
        "first_tokens": results.first_tokens,
        "cases": [
            {
                "case": one.case.name,
                "batch": one.case.batch,
                "context_tokens": one.case.context_tokens,
                "engine": one.engine,
                "variant": one.variant,
                "error": one.error,
                "step_seconds": one.seconds,
                "tokens_per_second": one.tokens_per_second if one.seconds else None,
                "limit_tokens_per_second": one.case.tokens / results.limit_seconds(one.engine, one.case),
                "limit_ratio": results.limit_ratio(one) if one.seconds else None,
                "reads_ratio": results.reads_ratio(one) if one.seconds else None,
            }
            for one in results.measured
        ],
    }


def _shares(results: EngineResults, engine: str, context: int) -> list[tuple[float, float]]:
    return sorted(
        (float(one.case.batch), 100 * results.limit_ratio(one))
        for one in results.measured
        if one.engine == engine
        and one.seconds
        and (one.case.kind, one.case.context_tokens) == ("decode", context)
    )


def _bars(results: EngineResults, case: Case) -> list[Bar]:
    return [_bar(results, one) for one in results.measured if one.case == case and one.seconds]


def _bar(results: EngineResults, one: Measured) -> Bar:
    limit = 100 * results.limit_seconds(one.engine, one.case)
    return Bar(one.engine, limit / one.median_seconds, limit / max(one.seconds), limit / one.least_seconds)
