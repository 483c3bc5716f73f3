"""Both commands from end to end, on a tiny seeded model: real workers, real routers, real HTTP."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from warmfleet_cli.__main__ import app
from warmfleet_cli.bench.app import parse_policies
from warmfleet_cli.errors import ExitCode
from warmfleet_testing.engine.worker_process import tiny_served_model

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_served_model(tmp_path_factory.mktemp("models") / "tiny")


def children():
    """Pids of this process's children."""
    return {
        int(pid) for tasks in Path("/proc/self/task").glob("*/children") for pid in tasks.read_text().split()
    }


def run(*arguments):
    """The command's result; standard output and standard error apart."""
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_bench_prefix_compares_policies_on_a_real_fleet_and_leaves_no_process(folder, tmp_path):
    before = children()

    result = run(
        *("prefix", "--model-path", folder, "--model", "tiny", "--output-dir", tmp_path, "--output", "json"),
        *("--workers", 2, "--repeats", 1, "--groups", 3, "--prompts-per-group", 3),
        *("--prefix-tokens", 64, "--question-tokens", 20, "--output-tokens", 4),
        *("--dtype", "Float32", "--minutes", 0.2, "--resident-ratio", 0.5),
    )

    assert result.exit_code in (0, 1), result.output
    record = json.loads(result.stdout)
    assert record == json.loads((tmp_path / "prefix.json").read_text())
    variants = [(run["policy"], run["routers"]) for run in record["runs"]]
    assert variants == [("LowestCost", 1), ("RoundRobin", 1), ("LowestCost", 2)]
    for each in record["runs"]:
        assert each["success_ratio"] == 1.0, each["errors"]
        assert each["requests"] == 9
        assert each["reusable_tokens"] == 3 * 2 * 64
        assert each["reused_tokens"] <= each["reusable_tokens"]
        assert each["predictions"] == 9
        assert each["actual_tokens"] == each["reused_tokens"]
    assert record["runs"][0]["reused_tokens"] > 0
    assert record["calibration"]["rate_per_second"] < record["calibration"]["saturation_per_second"]
    assert record["targets"][0] == {
        "name": "requests answered",
        "measured": 100.0,
        "required": 100,
        "at_least": True,
        "unit": "%",
        "reached": True,
    }
    assert result.exit_code == (0 if all(target["reached"] for target in record["targets"]) else 1)
    bars = list(ET.parse(tmp_path / "prefix-policies.svg").getroot().iter(f"{SVG}rect"))
    assert len(bars) == 2 * len(variants)
    assert "torch" in result.stderr
    assert children() == before


def test_bench_cache_measures_generation_first_tokens_and_memory(folder, tmp_path):
    result = run(
        *("cache", "--model-path", folder, "--model", "tiny", "--output-dir", tmp_path, "--output", "json"),
        *("--tokens", 24, "--cached-prompt-tokens", 160, "--repeats", 2),
    )

    assert result.exit_code in (0, 1), result.output
    record = json.loads(result.stdout)
    reached = {target["name"]: target["reached"] for target in record["targets"]}
    assert reached["tokens equal with and without cache"]
    assert reached["cached tokens in every warm prompt"]
    assert reached["cached tokens in any cold prompt"]
    assert reached["KV bytes per token off the formula"]
    assert record["kv_size"]["formula_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    assert record["first_token"]["warm_cached_tokens"] == [160, 160]
    assert len(record["generation"]["cached_step_seconds"]) == 24
    lines = [
        [len(line.get("points").split()) for line in ET.parse(path).getroot().iter(f"{SVG}polyline")]
        for path in (tmp_path / "cache-time.svg", tmp_path / "cache-memory.svg")
    ]
    assert lines == [[24, 24, 3], [24, 24, 24]]


def test_a_model_that_was_not_pulled_is_named_with_the_command_that_fetches_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WARMFLEET_HOME", str(tmp_path / "empty"))

    result = run("cache", "--output-dir", tmp_path)

    assert result.exit_code == ExitCode.MODEL
    assert "warmfleet model pull smollm2-135m-instruct" in result.output


def test_lowest_cost_is_always_compared_and_an_unknown_policy_is_refused():
    assert parse_policies("all") == ["LowestCost", "LeastLoaded", "RoundRobin", "ConsistentHash"]
    assert parse_policies("RoundRobin") == ["LowestCost", "RoundRobin"]
    result = run("prefix", "--policies", "Fastest")
    assert result.exit_code == 2
    assert "'Fastest' is not a policy" in result.output
