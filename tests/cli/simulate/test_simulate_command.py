"""`warmfleet simulate` as a user meets it: its table, its JSON, and what it refuses."""

import json
import re
from pathlib import Path

import pytest

from warmfleet_cli.errors import ExitCode
from warmfleet_simulator.autoscalers.catalog import AUTOSCALERS
from warmfleet_testing.truth.simulate_command import SLO, run


def test_routings_stand_side_by_side(trace: Path) -> None:
    result = run("--trace", str(trace), "--replicas", "2", "--routing", "LowestCost,RoundRobin")

    assert result.exit_code == 0
    title, lowest_cost, round_robin, _, _, causes, first, second = result.stdout.splitlines()
    assert title.split()[:3] == ["ROUTING", "REPLICAS", "REPLICA-SECONDS"]
    assert lowest_cost.split()[:2] == ["LowestCost", "2"]
    assert "34.1%" in lowest_cost  # 1,024 of 3,000 tokens of each pair
    assert " 0.0%" in round_robin
    assert causes.split()[2:7] == ["COMPULSORY", "PLACEMENT", "CAPACITY", "LOST", "ROLLOUT"]
    assert first.split()[:3] == ["LowestCost", "65.9%", "0.0%"]
    assert second.split()[:3] == ["RoundRobin", "65.9%", "34.1%"]
    assert result.stderr == ""


def test_a_router_without_events_shows_no_causes(trace: Path) -> None:
    result = run("--trace", str(trace), "--routing", "ApproximatePrefix")

    assert "MISSED" not in result.stdout


def test_json_has_the_replica_and_every_figure(trace: Path) -> None:
    result = run(
        "--trace", str(trace), "--replicas", "3", "--routing", "all", "--gpu", "L4", "--output", "json"
    )

    document = json.loads(result.stdout)
    assert [report["routing"] for report in document["reports"]] == [
        "LowestCost", "LeastLoaded", "RoundRobin", "ConsistentHash", "ApproximatePrefix",
    ]  # fmt: skip
    report = document["reports"][0]
    assert (report["requests"], report["answered"], report["refused"]) == (80, 80, {})
    assert report["cached_tokens"] == 40 * 1024
    assert report["first_token_ms"]["p50"] < report["first_token_ms"]["p99"]
    assert document["replica"]["block_size_tokens"] == 512


def test_measured_step_times_replace_the_gpus(trace: Path, tmp_path: Path) -> None:
    times = tmp_path / "times.json"
    times.write_text('{"base_seconds": 0.5, "per_prefill_token_seconds": 0.0001}')
    arguments = ("--trace", str(trace), "--kv-tokens", "5000", "--output", "json")

    document = json.loads(run(*arguments, "--step-times", str(times)).stdout)

    assert document["replica"]["step_times"]["base_ps"] == 5 * 10**11
    assert document["replica"]["total_blocks"] == 9
    assert document["reports"][0]["inter_token_ms"]["p50"] == pytest.approx(500, rel=0.02)


def test_a_workload_is_generated_in_place_of_a_trace() -> None:
    result = run(
        "--generate", "shared,requests=40,seed=5", "--block-size", "100", "--replicas", "1", "-o", "json"
    )  # fmt: skip

    document = json.loads(result.stdout)
    (report,) = document["reports"]
    assert document["traffic"].startswith("shared,requests=40,requestsPerSecond=10.0")
    assert report["answered"] == 40
    assert 0.3 < report["hit_rate"] < 0.8


def test_an_objective_may_generate_its_requests(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    made = "150, targetStepMilliseconds: 54, generate: {name: steady, requests: 12}}"
    path.write_text(SLO.replace("150}", made))

    document = json.loads(run("--slo", str(path), "--replicas", "1", "-o", "json").stdout)
    shorter = json.loads(
        run("--slo", str(path), "--generate", "steady,requests=3", "--replicas", "1", "-o", "json").stdout
    )

    assert document["reports"][0]["requests"] == 12
    assert document["replica"]["target_step_milliseconds"] == 54
    assert (
        json.loads(run("--generate", "steady,requests=3", "-o", "json").stdout)["replica"][
            "target_step_milliseconds"
        ]
        == 100
    )
    assert shorter["reports"][0]["requests"] == 3


@pytest.mark.parametrize("arguments", [(), ("--trace", "t.jsonl", "--generate", "steady")])
def test_traffic_is_a_trace_or_a_workload(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)

    assert result.exit_code == ExitCode.USAGE
    assert "give either a trace or a workload" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--routing", "Fastest"], "no routing is called 'Fastest'; known are LowestCost"),
        (["--gpu", "H900"], "no GPU is called 'H900'"),
        (["--model", "gpt"], "no model is called 'gpt'"),
        (["--step-times", "/none.json"], "/none.json: No such file"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(
    trace: Path, arguments: list[str], reason: str
) -> None:
    result = run("--trace", str(trace), *arguments)

    assert result.exit_code == ExitCode.FAILED
    assert reason in result.stderr


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ("{", "times.json: "),
        ("{}", "base_seconds and per_prefill_token_seconds are needed"),
        ('{"base_seconds": -1}', "base_seconds -1.0 is not between"),
        ('{"base_seconds": 1e300}', "base_seconds 1e+300 is not between"),
        ('{"base_seconds": "x"}', "times.json: "),
    ],
)
def test_step_times_that_no_engine_has_are_refused(
    trace: Path, tmp_path: Path, times: str, reason: str
) -> None:
    path = tmp_path / "times.json"
    path.write_text(times)
    result = run("--trace", str(trace), "--step-times", str(path))

    assert result.exit_code == ExitCode.FAILED
    assert reason in result.stderr


def test_a_damaged_trace_ends_with_its_line(trace: Path) -> None:
    trace.write_text(trace.read_text()[:-20])
    result = run("--trace", str(trace), "--replicas", "2")

    assert result.exit_code == ExitCode.FAILED
    assert "trace.jsonl, line 80" in result.stderr
    assert result.stdout == ""


def test_a_policy_is_given_with_its_setting(trace: Path, slo: Path) -> None:
    common = ("--trace", str(trace), "--slo", str(slo), "-o", "json", "--replicas", "2", "--policy")

    fixed = json.loads(run(*common, "Fixed:3").stdout)["reports"][0]
    assert fixed["timeline"] == [[0.0, 0, 3, 0]]
    grown = json.loads(run(*common, "RequestsPerSecond:0.5").stdout)["reports"][0]
    assert grown["pod_seconds"]["pending"] > 0
    assert sum(grown["pod_seconds"].values()) == pytest.approx(grown["replica_seconds"])


@pytest.mark.parametrize(
    "policy", ["Fixed:0", "Fixed:", "Fixed:1001", "Fixed:²", "Operator:1", "KvUtilization", "TokenSupply:9/0"]
)
def test_a_policy_without_such_a_setting_is_refused(trace: Path, slo: Path, policy: str) -> None:
    result = run("--trace", str(trace), "--slo", str(slo), "--policy", policy)

    assert result.exit_code == ExitCode.FAILED
    assert policy.partition(":")[0] in result.stderr


def test_the_operators_policy_scales_within_an_objective(trace: Path, slo: Path) -> None:
    result = run(
        "--trace", str(trace), "--slo", str(slo), "--policy", "Operator", "--replicas", "2", "-o", "json"
    )  # fmt: skip

    document = json.loads(result.stdout)
    report = document["reports"][0]
    assert document["gpu"] == "L4"
    assert report["objective_percent"] > 90
    assert report["timeline"][0] == [0.0, 0, 2, 0]
    assert report["replica_seconds"] > 0


def test_the_changes_of_a_fleet_stand_below_it_with_their_reasons(busy: Path, slo: Path) -> None:
    arguments = ("--trace", str(busy), "--slo", str(slo), "--policy", "Operator", "--replicas", "1")

    text = run(*arguments).stdout
    (report,) = json.loads(run(*arguments, "-o", "json").stdout)["reports"]

    first = report["changes"][0]
    assert (first["from_replicas"], first["decision"]["reason"]) == (1, "LatencyAboveTarget")
    assert first["decision"]["inputs"]["spec_replicas"] == 1
    head, row = text[text.index("     AT") :].splitlines()[:2]
    assert head.split() == ["AT", "REPLICAS", "BECAUSE", "ASKED", "FOR"]
    at = round(first["at_seconds"] - report["first_arrival_seconds"])
    assert row.startswith(
        f"0:{at // 60:02}:{at % 60:02}  1 to {first['to_replicas']}    latency above target  "
    )
    assert "more, in --output json" not in text


def test_of_several_fleets_each_has_its_changes_up_to_a_number(
    busy: Path, slo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmfleet_cli.simulate_tables.MAX_CHANGES", 1)

    text = run(
        "--trace", str(busy), "--slo", str(slo), "--policy", "Operator", "--replicas", "1",
        "--routing", "LowestCost,RoundRobin",
    ).stdout  # fmt: skip

    lines = text.splitlines()
    for routing in ("LowestCost:", "RoundRobin:"):
        head, row, more = lines[lines.index(routing) + 1 :][:3]
        assert head.startswith("     AT")
        assert "1 to 2" in row
        assert more.startswith("and ")
        assert more.endswith(" more, in --output json with the figures that decided")


def test_policies_stand_beside_fleets_that_know_the_traffic(trace: Path, slo: Path) -> None:
    trace.write_text("".join(trace.read_text().splitlines(keepends=True)[:24]))
    svg = trace.with_suffix(".svg")
    result = run(
        "--trace", str(trace), "--slo", str(slo), "--compare", "--replicas", "2", "--svg", str(svg)
    )  # fmt: skip

    assert result.exit_code == 0
    assert "<title>Operator, LowestCost, trace.jsonl</title>" in svg.read_text()
    fleets, grid, verdict = result.stdout.split("\n\n")
    names = [line.split("  ")[0] for line in fleets.splitlines()]
    assert (names[0], names[2]) == ("FLEET", "clairvoyant")
    assert names[1].startswith("peak-static: ")
    policies = {name.split(":")[0] for name in names[3:-1]}
    assert policies == {"Fixed", "Operator", *AUTOSCALERS}
    assert len(grid.splitlines()) == 1 + 2 + 5 * len(AUTOSCALERS)
    assert sum(line.endswith("best") for line in grid.splitlines()) == 1 + len(AUTOSCALERS)
    assert verdict.startswith("Operator reaches 97 %: ")
    # Each simulation is shown when it has ended, for those who end a comparison early.
    shown = [re.sub(r"[\d,]*\d(\.\d+)?", "N", line) for line in result.stderr.splitlines()]
    assert shown[:3] == [
        "N replicas: N replica-seconds, N% met the objective",
        "N replicas: N replica-seconds, N% met the objective",
        "peak-static: N replicas, N replica-seconds; clairvoyant: N; policies begin with N",
    ]
    assert sum(line.startswith("Operator: ") for line in shown) == 1
    of_grids = [line for line in shown[3:] if not line.startswith("Operator: ")]
    assert len(of_grids) >= 5 * len(AUTOSCALERS)
    assert {line.partition(": ")[2] for line in of_grids} <= {
        "N replica-seconds, N% met the objective",
        "> N replica-seconds, stopped at N s: too many missed the objective",
        "> N replica-seconds, stopped at N s: another setting costs less",
    }


def test_a_fleet_that_is_too_small_for_the_objective_is_named(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "hard.yaml"
    path.write_text(SLO.replace("2000", "1"))
    result = run("--trace", str(trace), "--slo", str(path), "--compare", "--replicas", "1")

    assert result.exit_code == ExitCode.FAILED
    assert "1 replicas do not meet the objective" in result.stderr


def test_a_policy_needs_an_objective(trace: Path) -> None:
    for option in (["--compare"], ["--policy", "Operator"], ["--policy", "KvUtilization:60"]):
        result = run("--trace", str(trace), *option)
        assert result.exit_code == ExitCode.USAGE
        assert "needs an objective" in result.stderr
