"""Figures of the engines against the limits, and what must be reached."""

import dataclasses
import json
from xml.etree import ElementTree as ET

import msgspec
import pytest

from warmfleet_cli.bench.engine import results as results_module
from warmfleet_cli.bench.engine.cases import Case
from warmfleet_cli.bench.engine.results import (
    EngineResults,
    Measured,
    engine_charts,
    engine_record,
    engine_targets,
)
from warmfleet_cli.bench.tables import engine_lines, engine_table
from warmfleet_worker.engine.roofline import MachineLimits, ModelCost

DECODE, BATCH, LONG = Case("decode", 1, 128), Case("decode", 8, 128), Case("decode", 1, 4096)
PREFILL = Case("prefill", 1, 512)
LIMITS = MachineLimits(
    read_bytes_per_second=2e10,
    read_threads=2,
    buffer_bytes=2**31,
    bfloat16_flops_per_second=1e12,
    float32_flops_per_second=1e11,
)
LARGE = ModelCost(
    element_bytes=2,
    layer_weights=400_000_000,
    head_weights=100_000_000,
    kv_bytes_per_token=0,
    flops_per_pair=0,
)
SMALL = msgspec.structs.replace(LARGE, layer_weights=100_000_000)


def results(measured, cost=LARGE, **fields):
    return EngineResults(
        limits_before=msgspec.structs.replace(LIMITS, read_bytes_per_second=1e10),
        limits_after=msgspec.structs.replace(LIMITS, bfloat16_flops_per_second=1e11),
        costs={
            "warmfleet": cost,
            "warmfleet-int8": msgspec.structs.replace(cost, quantised_weight_bytes=1.0625),
        },
        versions={one.engine: "1.0" for one in measured},
        measured=measured,
        **{"missing": {}, "skipped": {}, "first_tokens": {}, "has_amx": False, **fields},
    )


def verdicts(found):
    return {target.name: (target.required, target.reached) for target in engine_targets(found)}


def test_each_limit_is_the_better_of_before_and_after():
    assert results([]).limits == LIMITS


def test_a_step_is_compared_by_its_median():
    measured = Measured("warmfleet", DECODE, "all cores", [0.1, 0.2, 0.5])

    assert results([measured]).limit_ratio(measured) == pytest.approx(0.05 / 0.2)
    assert measured.tokens_per_second == pytest.approx(5)


def test_a_large_model_must_reach_its_share_of_the_limit():
    found = results(
        [
            Measured("warmfleet", DECODE, "", [0.06]),
            Measured("warmfleet", BATCH, "", [0.10]),
            Measured("warmfleet", LONG, "", [0.06]),
        ]
    )

    assert verdicts(found) == {
        "decode 1 x 128: of the limit": (75, True),
        "decode 8 x 128: of the limit": (60, False),
        "decode 1 x 4096: of the limit": (65, True),
    }


def test_a_large_model_is_also_compared_with_reads_alone_in_the_same_turns():
    found = results(
        [
            Measured("warmfleet", DECODE, "", [0.08, 0.08, 9.0]),
            Measured("reads alone", DECODE, "2", [0.05, 0.06, 0.09]),
            Measured("warmfleet", BATCH, "", [0.11]),
            Measured("reads alone", BATCH, "2", [0.06]),
            Measured("warmfleet", LONG, "", [0.07]),
        ]
    )

    rows = [row[1:2] + row[6:8] for row in engine_table(found).rows]
    assert rows == [
        ("warmfleet", "62%", "75%"),
        ("reads alone", "83%", "100%"),
        ("warmfleet", "45%", "55%"),
        ("reads alone", "83%", "100%"),
        ("warmfleet", "71%", "-"),
    ]
    record = json.loads(msgspec.json.encode(engine_record(found)))
    assert [case["reads_ratio"] for case in record["cases"]] == [
        *(pytest.approx(ratio) for ratio in (0.75, 1, 6 / 11, 1)),
        None,
    ]
    # Reads took 60 ms where the limit is 50.
    assert found.limit_doubts == ["reads alone reached 83% of them in the turns of the engines"]
    assert verdicts(found) == {
        "decode 1 x 128: of a limit that is not trusted": (75, False),
        "decode 1 x 128: of reads alone in the same turns": (75, True),
        "decode 8 x 128: of a limit that is not trusted": (60, False),
        "decode 8 x 128: of reads alone in the same turns": (60, False),
        "decode 1 x 4096: of a limit that is not trusted": (65, True),
    }


def test_reads_that_reach_the_limit_leave_it_trusted():
    found = results(
        [Measured("warmfleet", DECODE, "", [0.06]), Measured("reads alone", DECODE, "2", [0.055])]
    )

    assert found.limit_doubts == []


def test_beside_a_fast_engine_most_of_the_limit_is_enough():
    found = results(
        [
            Measured("warmfleet", DECODE, "", [0.058]),
            Measured("llama.cpp", DECODE, "2", [0.07]),
            Measured("transformers", DECODE, "float32", [1.0]),
        ]
    )

    required = {name: value for name, (value, _) in verdicts(found).items() if "beside" in name}
    assert required == {
        "decode 1 x 128: beside llama.cpp's 14.3": pytest.approx(0.85 * 20),
        "decode 1 x 128: beside transformers's 1.0": pytest.approx(3),
    }


def test_a_small_model_is_compared_with_llama_cpp_alone():
    found = results(
        [Measured("warmfleet", DECODE, "", [0.1]), Measured("llama.cpp", DECODE, "2", [0.1])], cost=SMALL
    )

    assert verdicts(found) == {"decode 1 x 128: beside llama.cpp's 10.0": (pytest.approx(12), False)}


@pytest.mark.parametrize(("has_amx", "factor"), [(False, 1.2), (True, 2.0)])
def test_a_small_model_is_compared_with_vllm_where_both_are_measured(has_amx, factor):
    steps = [BATCH, Case("decode", 8, 1024), Case("decode", 1, 2048)]
    measured = [Measured(engine, case, "", [0.1]) for case in steps for engine in ("warmfleet", "vLLM")]
    # The machine counts, not the level of our kernels: vLLM's library uses what is there.
    found = dataclasses.replace(results(measured, SMALL), has_amx=has_amx)

    assert verdicts(found) == {
        f"{case.name}: beside vLLM's {case.batch / 0.1:.1f}": (factor * (case.batch / 0.1), False)
        for case in steps
    }


def test_a_prefill_must_not_be_slower_than_the_best_of_the_others():
    found = results(
        [
            Measured("warmfleet", PREFILL, "", [1.0]),
            Measured("llama.cpp", PREFILL, "2", [2.0]),
            Measured("transformers", PREFILL, "bfloat16", [0.5]),
        ]
    )

    [(name, (required, reached))] = verdicts(found).items()
    assert name == "prefill 512: beside transformers, the best of the others"
    assert required == 1024
    assert not reached


@pytest.mark.parametrize(("int8_seconds", "reached"), [(0.05, True), (0.063, False)])
def test_weights_in_8_bits_are_compared_with_the_same_engines_own_type(int8_seconds, reached):
    found = results(
        [
            Measured("warmfleet", DECODE, "", [0.1]),
            Measured("warmfleet-int8", DECODE, "", [int8_seconds]),
            # Products limit a batch and a prefill, and a context is in the same type in both.
            *(
                Measured(name, case, "", [0.1])
                for name in ("warmfleet", "warmfleet-int8")
                for case in (BATCH, Case("decode", 1, 1024), LONG, PREFILL)
            ),
        ],
        cost=SMALL,
    )

    assert verdicts(found) == {"decode 1 x 128: in 8 bits, times warmfleet's 10.0 tokens/s": (1.6, reached)}


def test_each_type_of_weights_has_its_own_limit():
    own, int8 = Measured("warmfleet", DECODE, "", [0.1]), Measured("warmfleet-int8", DECODE, "", [0.1])
    found = results([own, int8, Measured("reads alone", DECODE, "", [0.08])])

    assert found.limit_ratio(own) == pytest.approx(0.5)
    assert found.limit_ratio(int8) == pytest.approx(0.5 * 1.0625 / 2)
    # Reads alone read what the weights in their own type take.
    assert found.reads_ratio(own) == pytest.approx(0.8)
    assert found.reads_ratio(int8) == pytest.approx(0.8 * 1.0625 / 2)
    assert [row[5] for row in engine_table(found).rows] == ["20", "38", "20"]
    record = json.loads(msgspec.json.encode(engine_record(found)))
    assert [case["limit_tokens_per_second"] for case in record["cases"]] == [
        pytest.approx(20),
        pytest.approx(20 * 2 / 1.0625),
        pytest.approx(20),
    ]
    shares = [bar.value for bar in results_module._bars(found, DECODE)]
    assert shares == [pytest.approx(50), pytest.approx(50 * 1.0625 / 2), pytest.approx(62.5)]
    assert record["model_costs"]["warmfleet-int8"]["quantised_weight_bytes"] == 1.0625
    assert "warmfleet-int8 reads 531 MB of weights." in engine_lines(found)[-1]
    assert "int8" not in engine_lines(results([own]))[-1]


def test_the_report_names_what_did_not_run():
    measured = [
        Measured("warmfleet", DECODE, "all cores", [0.1]),
        Measured("llama.cpp", DECODE, "2", [], error="RuntimeError: no room"),
        Measured("warmfleet", PREFILL, "all cores", [0.5, 0.6]),
    ]
    found = results(measured, missing={"transformers": "not installed"}, skipped={LONG.name: "needs 9 GiB"})

    table = engine_table(found)
    assert [row[:2] for row in table.rows] == [
        ("decode 1 x 128", "warmfleet"),
        ("decode 1 x 128", "llama.cpp"),
        ("prefill 512", "warmfleet"),
        ("decode 1 x 4096", "all"),
        ("all", "transformers"),
    ]
    assert table.rows[0][2:] == ("10.0", "10.0", "100.0", "20", "50%", "-", "all cores")
    assert [row[-1] for row in table.rows[1:]] == [
        "RuntimeError: no room",
        "all cores",
        "needs 9 GiB",
        "not installed",
    ]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert "20.0 GB/s read by 2 threads" in "\n".join(engine_lines(found))
    record = json.loads(msgspec.json.encode(engine_record(found)))
    assert [case["limit_ratio"] for case in record["cases"]] == [
        pytest.approx(0.5),
        None,
        pytest.approx(0.4096 / 0.55),
    ]
    charts = engine_charts(found)
    assert set(charts) == {"decode-128", "prefill"}
    for chart in charts.values():
        ET.fromstring(chart)


def test_the_limits_of_a_gpu_are_called_so():
    found = dataclasses.replace(
        results([]),
        limits_before=msgspec.structs.replace(LIMITS, gpu="H100", read_threads=0),
        limits_after=msgspec.structs.replace(LIMITS, gpu="H100", read_threads=0),
    )
    assert "20.0 GB/s read by H100 in 2 GiB" in engine_lines(found)[0]


def test_a_limit_that_was_measured_over_little_memory_or_exceeded_is_not_trusted():
    honest = Measured("warmfleet", DECODE, "", [0.06])
    beyond = Measured("warmfleet", BATCH, "", [0.04])
    short = msgspec.structs.replace(LIMITS, buffer_bytes=600 * 2**20)

    for measured, limits, doubts in (
        ([honest], LIMITS, []),
        ([honest], short, ["memory was short: reads were measured over 0.59 GiB, not 2"]),
        ([honest, beyond], LIMITS, ["warmfleet took less than the least time of decode 8 x 128"]),
    ):
        found = dataclasses.replace(results(measured), limits_before=limits, limits_after=limits)
        assert found.limit_doubts == doubts
        assert [line for line in engine_lines(found) if "not trusted" in line] == [
            f"Limits not trusted: {doubt}." for doubt in doubts
        ]
        assert json.loads(msgspec.json.encode(engine_record(found)))["limit_doubts"] == doubts
        assert all(("not trusted" in name) is bool(doubts) for name in verdicts(found))
    assert "above it" in str(engine_table(found).rows)
