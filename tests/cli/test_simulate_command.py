"""`warmfleet simulate` as a user meets it: its table, its JSON, and what it refuses."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from warmfleet_cli.__main__ import app
from warmfleet_cli.errors import ExitCode
from warmfleet_simulator.autoscalers.catalog import AUTOSCALERS
from warmfleet_testing.resources.full_manifests import MINIMAL


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", "--jobs", "1", *arguments])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty prompts, each twice, so that every second one can hit."""
    path = tmp_path / "trace.jsonl"
    lines = [
        {
            "timestamp": 500 * number,
            "input_length": 1500,
            "output_length": 20,
            "hash_ids": [3 * (number // 2) + block for block in range(3)],
        }
        for number in range(80)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


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


SLO = """
workloads:
  chat: {gpu: L4, model: Llama-3.1-8B, firstTokenMilliseconds: 2000, betweenTokensMilliseconds: 150}
"""


@pytest.fixture
def slo(tmp_path: Path) -> Path:
    path = tmp_path / "slo.yaml"
    path.write_text(SLO)
    return path


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


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    """Four prompts a second, which are too many for one replica."""
    lines = [
        {
            "timestamp": number * 250,
            "input_length": 2048,
            "output_length": 40,
            "hash_ids": list(range(4 * number, 4 * number + 4)),
        }
        for number in range(200)
    ]
    path = tmp_path / "busy.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


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


@pytest.fixture
def deployment(tmp_path: Path) -> Callable[..., str]:
    """Writes a manifest with `spec.autoscaling` and `spec.engine` as given; the file's name."""

    def write(autoscaling: str, *, replicas: int = 1, engine: dict[str, object] | None = None) -> str:
        path = tmp_path / "deployment.yaml"
        given = {"replicas": replicas, "autoscaling": yaml.safe_load(autoscaling), "engine": engine or {}}
        path.write_text(yaml.safe_dump({**MINIMAL, "spec": {**MINIMAL["spec"], **given}}))
        return str(path)

    return write


def test_a_deployments_policy_with_the_defaults_decides_as_they_do(
    busy: Path, slo: Path, deployment: Callable[..., str]
) -> None:
    targets = {"firstToken": 2000, "betweenTokens": 150}
    latency = ", ".join(
        f"{name}: {{percentile: 97, targetMilliseconds: {most}}}" for name, most in targets.items()
    )
    file = deployment(f"{{maxReplicas: 1000, latency: {{{latency}}}}}")
    arguments = ("--trace", str(busy), "--slo", str(slo), "--policy", "Operator", "-o", "json")

    by_defaults = json.loads(run(*arguments, "--replicas", "1").stdout)
    by_file = json.loads(run(*arguments, "--file", file).stdout)

    assert by_defaults["reports"][0]["changes"]
    assert by_file["reports"][0]["changes"] == by_defaults["reports"][0]["changes"]
    assert (by_defaults["deployment"], by_file["deployment"]) == (None, "probe")


@pytest.mark.parametrize(
    ("replicas", "given", "first"),
    [(1, (), 2), (0, (), 2), (3, (), 3), (1, ("--replicas", "3"), 3), (1, ("--replicas", "9"), 3)],
    ids=["its least", "none", "its own", "as asked for", "its most"],
)
def test_a_deployments_policy_keeps_its_bounds(
    busy: Path, slo: Path, deployment: Callable[..., str], replicas: int, given: tuple[str, ...], first: int
) -> None:
    file = deployment("{minReplicas: 2, maxReplicas: 3}", replicas=replicas)

    result = run(
        "--trace", str(busy), "--slo", str(slo), "--policy", "Operator", "-f", file, "-o", "json", *given
    )  # fmt: skip

    (report,) = json.loads(result.stdout)["reports"]
    sizes = [pending + ready for _, pending, ready, _ in report["timeline"]]
    assert sizes[0] == first
    assert 2 <= min(sizes) <= max(sizes) <= 3


def test_a_deployments_policy_stands_beside_the_others_by_its_name(
    trace: Path, slo: Path, deployment: Callable[..., str]
) -> None:
    trace.write_text("".join(trace.read_text().splitlines(keepends=True)[:24]))
    file = deployment("{minReplicas: 3, maxReplicas: 3}")

    result = run("--trace", str(trace), "--slo", str(slo), "--compare", "--replicas", "2", "-f", file)

    (row,) = [line for line in result.stdout.splitlines() if line.startswith("Operator:probe ")]
    name, *_, replicas, _, _, _, _, _ = row.split()
    assert (name, replicas) == ("Operator:probe", "3")
    assert "Operator with 3 by its bounds" in " ".join(result.stdout.split())
    assert ", Operator with 3" in result.stderr
    assert "Operator reaches 97 %" in result.stdout


def test_without_a_comparison_the_deployment_stands_above_the_table(
    trace: Path, slo: Path, deployment: Callable[..., str]
) -> None:
    file = deployment("{minReplicas: 2, maxReplicas: 3}")

    result = run("--trace", str(trace), "--slo", str(slo), "--policy", "Operator", "-f", file)

    assert result.stdout.splitlines()[0] == (
        "Operator:probe, 2 to 3 replicas, begins with 2, steps planned for 100 ms, as the objective has them"
    )


@pytest.mark.parametrize(
    ("engine", "stated"),
    [
        ({"targetStepMilliseconds": 40}, "steps planned for 40 ms, its own"),
        (
            {"maxBatchedTokens": 64},
            "steps planned for 100 ms, as the objective has them, not simulated: engine.maxBatchedTokens",
        ),
        (
            {"type": "VLLM"},
            "steps planned for 100 ms, as the objective has them, not simulated: engine.type VLLM",
        ),
    ],
    ids=["its target", "its tokens", "its engine"],
)
def test_a_comparison_states_how_a_deployments_steps_are_planned(
    trace: Path, slo: Path, deployment: Callable[..., str], engine: dict[str, object], stated: str
) -> None:
    trace.write_text("".join(trace.read_text().splitlines(keepends=True)[:8]))
    file = deployment("{minReplicas: 1, maxReplicas: 2}", engine=engine)

    result = run("--trace", str(trace), "--slo", str(slo), "--compare", "--replicas", "1", "-f", file)

    first, *_ = " ".join(result.stdout.split()).partition(" FLEET ")
    assert first == f"Operator:probe, 1 to 2 replicas, {stated}"


@pytest.mark.parametrize(
    ("engine", "objective", "milliseconds"),
    [
        ({"targetStepMilliseconds": 40}, {"targetStepMilliseconds": 90}, 40),
        ({}, {"targetStepMilliseconds": 90}, 90),
        ({}, {}, 100),
    ],
    ids=["the deployment's", "the objective's", "the engine's default"],
)
@pytest.mark.parametrize("compared", [False, True])
def test_replicas_plan_their_steps_as_the_deployment_states(
    trace: Path,
    slo: Path,
    deployment: Callable[..., str],
    engine: dict[str, object],
    objective: dict[str, object],
    milliseconds: int,
    compared: bool,
) -> None:
    trace.write_text("".join(trace.read_text().splitlines(keepends=True)[:8]))
    objectives = yaml.safe_load(slo.read_text())
    next(iter(objectives["workloads"].values())).update(objective)
    slo.write_text(yaml.safe_dump(objectives))
    file = deployment("{minReplicas: 1, maxReplicas: 2}", engine=engine)
    policy = ("--compare", "--replicas", "1") if compared else ("--policy", "Operator")

    result = run("--trace", str(trace), "--slo", str(slo), "-f", file, "-o", "json", *policy)

    assert json.loads(result.stdout)["replica"]["target_step_milliseconds"] == milliseconds


def test_compared_fleets_plan_their_steps_as_the_deployment_states(
    busy: Path, tmp_path: Path, deployment: Callable[..., str]
) -> None:
    busy.write_text("".join(busy.read_text().splitlines(keepends=True)[:24]))
    patient = tmp_path / "patient.yaml"
    patient.write_text(
        SLO.replace("Milliseconds: 2000", "Milliseconds: 20000").replace(
            "Milliseconds: 150", "Milliseconds: 900"
        )
    )

    def gaps_milliseconds(engine: dict[str, object]) -> dict[str, float]:
        file = deployment("{minReplicas: 1, maxReplicas: 1}", engine=engine)
        common = ("--trace", str(busy), "--slo", str(patient), "-o", "json")
        result = run(*common, "--compare", "--replicas", "1", "-f", file)
        compared = json.loads(result.stdout)["comparison"]
        fixed = {f"Fixed:{replicas}": report for replicas, report in compared["fixed"].items()}
        chosen = {policy["name"]: policy["report"] for policy in compared["policies"]}
        return {name: report["inter_token_ms"]["p90"] for name, report in {**fixed, **chosen}.items()}

    by_default, longer = gaps_milliseconds({}), gaps_milliseconds({"targetStepMilliseconds": 300})

    assert {"Fixed:1", "Operator", "KvUtilization"} <= by_default.keys() == longer.keys()
    assert all(longer[name] > 1.3 * gap for name, gap in by_default.items())


def test_answers_wait_as_long_for_a_token_as_the_deployments_steps_take(
    busy: Path, slo: Path, deployment: Callable[..., str]
) -> None:
    def gap_milliseconds(engine: dict[str, object]) -> float:
        file = deployment("{minReplicas: 1, maxReplicas: 1}", engine=engine)
        result = run(
            "--trace", str(busy), "--slo", str(slo), "--policy", "Operator", "-f", file, "-o", "json"
        )  # fmt: skip
        (report,) = json.loads(result.stdout)["reports"]
        return float(report["inter_token_ms"]["p50"])

    assert gap_milliseconds({"targetStepMilliseconds": 300}) > 2 * gap_milliseconds({})


@pytest.mark.parametrize(
    ("autoscaling", "arguments", "code", "stated"),
    [
        ("{maxReplicas: 3}", (), ExitCode.USAGE, "is the operator's policy"),
        ("{maxReplicas: 3}", ("--policy", "KvUtilization:60"), ExitCode.USAGE, "is the operator's policy"),
        ("null", ("--policy", "Operator"), ExitCode.USAGE, "deployment.yaml has no spec.autoscaling"),
        ("{minReplicas: 0, maxReplicas: 3}", ("--policy", "Operator"), ExitCode.MANIFEST, "does not sleep"),
        ("{minReplicas: 4, maxReplicas: 3}", ("--policy", "Operator"), ExitCode.MANIFEST, "minReplicas"),
        ("{maxReplicas: 3}", ("--policy", "Operator", "-f", "absent.yaml"), ExitCode.MANIFEST, "absent.yaml"),
    ],
    ids=["fixed", "another's", "none", "sleeping", "contradictory", "absent"],
)
def test_a_policy_that_cannot_be_simulated_is_refused(
    trace: Path,
    slo: Path,
    deployment: Callable[..., str],
    autoscaling: str,
    arguments: tuple[str, ...],
    code: ExitCode,
    stated: str,
) -> None:
    result = run("--trace", str(trace), "--slo", str(slo), "-f", deployment(autoscaling), *arguments)

    assert result.exit_code == code
    assert stated in result.stderr
    assert result.stdout == ""


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
