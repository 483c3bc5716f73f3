from xml.etree import ElementTree as ET

import pytest

from warmfleet_cli.bench.cache.generation import Comparison, GenerationLog, ReferenceLog
from warmfleet_cli.bench.cache.results import (
    CacheResults,
    FirstTokens,
    KvSize,
    cache_record,
    cache_targets,
    memory_chart,
    time_chart,
)

SVG = "{http://www.w3.org/2000/svg}"


def results(**changes):
    steps = 20
    parts = {
        "comparison": Comparison(
            prompt_tokens=10,
            cached=GenerationLog(list(range(steps)), [0.01] * steps, [1 + i // 16 for i in range(steps)]),
            uncached=GenerationLog(list(range(steps)), [0.05] * steps, [0] * steps),
            reference=ReferenceLog([10, 20], [0.05, 0.05], [0.06, 0.06], 2),
        ),
        "kv_size": KvSize(2, 2, 16, 4, arena_bytes_per_token=512),
        "block_size_tokens": 16,
        "first_tokens": FirstTokens(1016, [1.0, 1.2, 0.9], [0.1, 0.3, 0.1], [0, 0, 0], [1008, 1008, 1008]),
        "reference_name": "transformers 5",
    }
    return CacheResults(**(parts | changes))


def missed(found):
    return {target.name for target in cache_targets(found, cached_prompt_tokens=1008) if not target.reached}


def test_good_results_reach_every_target():
    assert missed(results()) == set()


def test_kv_per_token_is_two_times_layers_heads_dimension_and_size():
    size = KvSize(layers=30, kv_heads=3, head_dim=64, element_bytes=2, arena_bytes_per_token=23_040)

    assert size.formula_bytes_per_token == 23_040
    assert size.formula() == "2 x 30 layers x 3 KV heads x 64 dimensions x 2 bytes = 23,040 bytes"


def test_a_single_byte_of_padding_per_token_misses_the_size_target():
    padded = KvSize(2, 2, 16, 4, arena_bytes_per_token=513)

    assert missed(results(kv_size=padded)) == {"KV bytes per token off the formula"}


def test_one_different_token_misses_the_target_of_equal_tokens():
    found = results()
    found.comparison.uncached.token_ids[7] = 999

    assert missed(found) == {"tokens equal with and without cache"}


def test_warm_and_cold_are_compared_by_their_medians():
    first = FirstTokens(1016, [1.0, 1.2, 0.9], [0.1, 9.9, 0.2], [0, 0, 0], [1008, 1008, 1008])

    assert first.warm_percent == pytest.approx(20.0)
    assert missed(results(first_tokens=first)) == {"warm time to first token, of cold"}


def test_a_cold_prompt_that_hit_or_a_warm_one_that_missed_invalidates_the_comparison():
    first = FirstTokens(1016, [1.0], [0.1], [16], [992])

    assert missed(results(first_tokens=first)) == {
        "cached tokens in every warm prompt",
        "cached tokens in any cold prompt",
    }


def test_one_hiccup_does_not_decide_against_our_uncached_step():
    found = results()
    found.comparison.reference = ReferenceLog([10, 20, 30], [0.05, 9.0, 0.05], [0.06, 0.06, 0.06], 3)

    assert missed(found) == set()


def test_without_transformers_there_is_no_target_for_it_and_no_line_in_the_chart():
    found = results(reference_name="")
    found.comparison.reference = ReferenceLog()

    names = {target.name for target in cache_targets(found, cached_prompt_tokens=1008)}

    assert not any("uncached step" in name for name in names)
    chart = ET.fromstring(time_chart(found.comparison, found.reference_name))
    assert len(list(chart.iter(f"{SVG}polyline"))) == 2


def test_the_charts_have_a_point_for_each_step():
    found = results()

    time = ET.fromstring(time_chart(found.comparison, found.reference_name))
    memory = ET.fromstring(memory_chart(found))

    def points(document):
        return [len(line.get("points").split()) for line in document.iter(f"{SVG}polyline")]

    assert points(time) == [20, 20, 2]
    assert points(memory) == [20, 20, 20]


def test_the_record_holds_every_step():
    record = cache_record(results())

    assert len(record["generation"]["cached_step_seconds"]) == 20
    assert record["generation"]["speedup"] == pytest.approx(5.0)
    assert record["generation"]["equal"] is True
    assert record["first_token"]["cold_median_seconds"] == 1.0
