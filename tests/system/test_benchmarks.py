"""Benchmarks run as documented, but small: counts are checked, never times."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from warmfleet_testing.engine.tiny_models import tiny_model_folder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def results_of(name: str, folder: Path, options: dict[str, object]) -> dict[str, Any]:
    """What a benchmark, or one of a room, has written, run with `options`."""
    arguments = [str(part) for option in options.items() for part in option]
    finished = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments, "--output-dir", str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"PYTHONPATH": str(BENCHMARKS)},
    )
    # 1 means that a target was missed: on a busy machine a time may be.
    assert finished.returncode in {0, 1}, finished.stderr
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results


@pytest.mark.model
def test_the_overhead_benchmark_measures_every_pair_and_finds_no_parity_bug(tmp_path):
    small = {"--streams": 4, "--pairs": 8, "--blocks": 2000, "--prompt-tokens": 300, "--answer-tokens": 2}

    variants = results_of("router_overhead", tmp_path, small)["variants"]

    assert [variant["name"] for variant in variants] == ["shared-prefix chat", "unique text", "token ids"]
    for variant in variants:
        assert (variant["pairs"], variant["failed"], variant["parity_bugs"]) == (8, 0, 0)
        assert variant["precise"] == 1.0
        assert variant["prompt_tokens"] >= 300


@pytest.mark.model
def test_a_chunks_cost_is_measured_in_turns_with_another_checkouts_router(tmp_path):
    small = {"--streams": 100, "--turns": 1, "--repeats": 1, "--seconds": 2, "--blocks": 2000}

    costs = results_of("chunk_cost", tmp_path, {**small, "--before": BENCHMARKS.parent})["chunk_us"]

    assert list(costs) == ["before", "now"]
    assert all(len(measured) == 1 and measured[0] > 0 for measured in costs.values())


def test_a_chunks_cost_is_not_compared_with_a_folder_that_has_no_router(tmp_path):
    with pytest.raises(AssertionError, match="it has no router"):
        results_of("chunk_cost", tmp_path, {"--before": tmp_path})


def test_the_benchmark_of_fleet_totals_reads_all_replicas_and_models(tmp_path):
    costs = results_of("fleet_totals", tmp_path, {"--calls": 2})["costs"]

    assert [(cost["replicas"], cost["models"]) for cost in costs] == [(100, 10), (1000, 100)]
    for cost in costs:
        assert 10 < cost["kib"] * 100 / cost["replicas"] <= 64


@pytest.mark.parametrize("kernels", ["Auto", "Torch"])
def test_the_benchmark_of_mixed_steps_computes_each_kind_and_its_parts(tmp_path, kernels):
    model = tiny_model_folder("qwen3", tmp_path / "model")
    kinds = "32,8@64,4x48,16+4x48,2*16@16+3x64,4096"

    options = {"--model-path": model, "--kinds": kinds, "--steps": 3, "--cpu-kernels": kernels}
    results = results_of("mixed_steps", tmp_path, options)

    steps = {step["name"]: step for step in results["steps"]}
    assert list(steps) == kinds.split(",")[:-1]  # the last one is longer than the model's limit
    assert [name for name, step in steps.items() if step["parts_ms"] is not None] == [
        "16+4x48",
        "2*16@16+3x64",
    ]
    assert all(step["median_ms"] >= step["least_ms"] > 0 for step in steps.values())


@pytest.mark.parametrize("kind", ["", "512@", "x", "0", "8*", "0x64", "512+-1x3"])
def test_a_kind_of_step_that_cannot_be_read_is_refused(kind):
    finished = subprocess.run(
        [sys.executable, str(BENCHMARKS / "mixed_steps.py"), "--kinds", kind],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert finished.returncode == 2
    assert "--kinds: " in finished.stderr


def test_the_benchmark_of_victims_replays_each_fleet_without_each_of_its_replicas(tmp_path):
    fleets = results_of("victims", tmp_path, {"--fleets": 2})["fleets"]

    assert [fleet["kind"] for fleet in fleets] == ["room", "full"]
    for fleet in fleets:
        assert 3 <= fleet["replicas"] == len(fleet["computed"]) <= 8
        assert set(fleet["chosen"].values()) <= fleet["computed"].keys()
        assert min(fleet["computed"].values()) > 0


@pytest.mark.model
def test_the_isolation_benchmark_finds_hits_within_a_tenant_and_none_across(tmp_path):
    results = results_of(
        "tenants/tenant_isolation", tmp_path, {"--probes": 40, "--prompt-tokens": 96, "--workers": 1}
    )

    assert results["wrongly_open"] == []
    cached = {name: way["features"]["cached_tokens"] for name, way in results["ways"].items()}
    warm = {name: way["warm"] for name, way in results["ways"].items()}
    assert cached["resident, attacker"] == cached["in flight, attacker"] == [0] * 40
    assert cached["resident, own tenant"] == [80 * one for one in warm["resident, own tenant"]]
    for name, way in results["ways"].items():
        assert sum(warm[name]) * 2 == len(warm[name])
        for alike in ("number of headers", "bytes of headers"):
            assert len(set(way["features"][alike])) == 1, name


@pytest.mark.model
def test_the_antagonist_attacks_in_every_way_while_another_tenant_works(tmp_path):
    lengths = {"--seconds": 2, "--alone-seconds": 0.5, "--settle-seconds": 0.5}
    small = {"--kinds": "all", "--sockets": 60, "--blocks": 1000, **lengths}

    alone, attacked, _ = results_of("tenants/antagonist", tmp_path, small)["phases"]

    assert (alone["sent"], attacked["sent"]) == (2, 8)
    assert set(attacked["attack"]) == {"idle", "chunked", "tokenize", "wide", "large", "leaving"}
    assert all(sum(outcomes.values()) > 0 for outcomes in attacked["attack"].values())
    assert alone["attack"] == {}


def test_the_benchmark_of_decisions_makes_each_kind_of_decision_in_a_filled_fleet(tmp_path):
    small = {"--workers": 40, "--blocks": 300, "--decisions": 5}

    (fleet,) = results_of("router_decisions", tmp_path, small)["decisions"]

    assert fleet["blocks"] >= 40 * 300
    assert [len(fleet[kind]) for kind in ("hot_ms", "cold_ms", "idle_ms")] == [5, 5, 5]


def test_the_benchmark_of_the_index_stays_within_its_bytes_and_finds_no_wrong_block(tmp_path):
    small = {"--workers": 40, "--blocks": 400_000, "--restarted-blocks": 2000}

    results = results_of("index_memory", tmp_path, small)

    assert results["restart"]["differing"] == 0
    (memory,) = results["memory"]
    assert 64 < memory["per_block"] <= 130
    assert memory["per_block_after_churn"] <= 130
    assert max(memory["per_further_holder"]) <= 16


def test_the_benchmark_of_a_simulated_fleet_measures_each_tenth_and_the_end(tmp_path):
    results = results_of("simulation/simulated_fleet", tmp_path, {"--requests": 40, "--replicas": 3})

    assert [cost["requests"] for cost in results["costs"]] == [*range(4, 41, 4), 40]
    assert results["answered"] == 40
