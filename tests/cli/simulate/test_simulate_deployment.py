"""`warmfleet simulate --file`: a deployment's policy and steps decide as its manifest states them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from warmfleet_cli.errors import ExitCode
from warmfleet_testing.resources.full_manifests import MINIMAL
from warmfleet_testing.truth.simulate_command import SLO, run


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
