import math
from xml.etree import ElementTree as ET

import pytest

from warmfleet_cli.bench.client import Answer
from warmfleet_cli.bench.prefix.results import (
    RunResult,
    prefix_chart,
    prefix_targets,
    run_record,
    summarise,
)
from warmfleet_cli.bench.variants import Prediction, Variant

LOWEST_COST = Variant("LowestCost")
TWO_ROUTERS = Variant("LowestCost", routers=2)
ROUND_ROBIN = Variant("RoundRobin")


def run(variant, *, cached=(0, 256), seconds=(0.4, 0.1), errors=("", ""), reusable=256):
    answers = [
        Answer(
            f"r{number}",
            error=error,
            first_token_seconds=math.nan if error else time,
            cached_tokens=tokens,
            prompt_tokens=304,
            output_tokens=16,
        )
        for number, (tokens, time, error) in enumerate(zip(cached, seconds, errors, strict=True))
    ]
    return RunResult(
        variant,
        answers,
        reusable_tokens=reusable,
        predictions=[Prediction(256, tokens) for tokens in cached],
        rate_per_second=1.0,
        seconds=2.0,
    )


def test_runs_of_one_variant_are_summed_and_their_spread_is_kept():
    runs = [
        run(LOWEST_COST, seconds=(0.4, 0.2)),
        run(ROUND_ROBIN, cached=(0, 0)),
        run(LOWEST_COST, cached=(0, 128), seconds=(0.6, 0.2)),
    ]

    first, second = summarise(runs)

    assert (first.variant, first.runs, first.requests) == (LOWEST_COST, 2, 4)
    assert (first.reused_tokens, first.reusable_tokens) == (384, 512)
    assert (first.reuse_ratio.low, first.reuse_ratio.high) == (0.5, 1.0)
    assert first.first_token_mean_seconds.mean == pytest.approx(0.35)
    assert (first.predictions, first.predictions_equal) == (4, 1)
    assert second.variant == ROUND_ROBIN
    assert second.reuse_ratio.mean == 0


def test_a_failed_request_counts_against_success_and_not_as_a_fast_answer():
    failed = run(LOWEST_COST, errors=("status 503", ""))

    assert failed.success_ratio == 0.5
    assert failed.first_token_seconds == [0.1]
    assert run_record(failed)["errors"] == ["status 503"]


def test_the_targets_ask_more_of_one_router_than_of_two():
    runs = [run(LOWEST_COST), run(TWO_ROUTERS, cached=(0, 235)), run(ROUND_ROBIN, cached=(0, 0))]

    answered, one, two = prefix_targets(runs)

    assert answered.reached
    assert (one.required, one.reached) == (95, True)
    assert (two.required, two.measured, two.reached) == (90, pytest.approx(91.8, abs=0.1), True)


def test_a_single_failed_request_misses_the_success_target():
    runs = [run(LOWEST_COST), run(ROUND_ROBIN, errors=("", "timed out"))]

    assert not prefix_targets(runs)[0].reached


def test_the_chart_has_a_bar_for_each_variant_in_both_panels():
    summaries = summarise([run(LOWEST_COST), run(TWO_ROUTERS), run(ROUND_ROBIN)])

    document = ET.fromstring(prefix_chart(summaries))

    bars = list(document.iter("{http://www.w3.org/2000/svg}rect"))
    assert len(bars) == 6
