"""Service level objectives: read from a file, and met or missed by a request."""

from pathlib import Path

import pytest

from warmfleet_simulator.errors import SimulationError
from warmfleet_simulator.hardware import replica_settings
from warmfleet_simulator.router.outcome import Outcome
from warmfleet_simulator.scaling.objective import Objective, read_objective

EXAMPLE = Path(__file__).parents[3] / "examples/slo.yaml"
OBJECTIVE = Objective(gpu="L4", model="m", first_token_milliseconds=1000, between_tokens_milliseconds=100)


@pytest.mark.parametrize(
    ("workload", "block_size_tokens"),
    [
        *(("conversation", 512), ("synthetic", 512), ("azure", 128)),
        *(("diurnal", 512), ("agent", 512), ("constant", 512)),
    ],
)
def test_the_example_names_replicas_that_exist(workload: str, block_size_tokens: int) -> None:
    objective = read_objective(EXAMPLE, workload)

    assert (
        replica_settings(objective.gpu, objective.model, block_size_tokens=block_size_tokens).total_blocks
        > 100
    )
    assert (objective.percent, objective.start_delay_seconds, objective.peak_window_seconds) == (97, 120, 60)


@pytest.mark.parametrize(
    ("workload", "seconds"), [("constant", 86_400), ("diurnal", 10_800), ("agent", 5000)]
)
def test_an_example_that_generates_its_requests_names_how(workload: str, seconds: float) -> None:
    generated = read_objective(EXAMPLE, workload).generate

    assert generated is not None
    assert generated.requests / generated.requests_per_second == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("outcome", "is_met"),
    [
        (Outcome(0.0, 10, output_tokens=11, first_token_seconds=1.0, answer_seconds=2.0), True),
        (Outcome(0.0, 10, output_tokens=11, first_token_seconds=1.01, answer_seconds=2.0), False),
        (Outcome(0.0, 10, output_tokens=11, first_token_seconds=0.5, answer_seconds=1.6), False),
        (Outcome(0.0, 10, output_tokens=1, first_token_seconds=0.5, answer_seconds=9.0), True),
        (Outcome(0.0, 10, refusal="overloaded"), False),
    ],
)
def test_a_request_meets_it_by_its_first_token_and_the_mean_of_the_others(
    outcome: Outcome, is_met: bool
) -> None:
    assert OBJECTIVE.is_met(outcome) is is_met


def test_the_operators_policy_has_its_defaults_and_the_targets() -> None:
    policy = OBJECTIVE.policy(max_replicas=7)

    assert policy.max_replicas == 7
    assert policy.scale_up_percent == 85
    assert policy.first_token is not None
    assert (policy.first_token.percentile, policy.first_token.target_milliseconds) == (97, 1000)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("workloads: {a: {gpu: L4}}", "missing required field `model`"),
        ("workloads: {a: {gpu: L4, model: m, speed: 1}}", "speed"),
        ("a: [", "slo.yaml: "),
        ("- 1", "slo.yaml: "),
        (
            "workloads: {a: {gpu: L4, model: m, firstTokenMilliseconds: 0, betweenTokensMilliseconds: 1}}",
            "firstTokenMilliseconds",
        ),
        ("[" * 5000, "slo.yaml: "),
        (
            "workloads: {a: {generate: {name: steady, requests: 0}}}",
            "generate.requests",
        ),
        (
            "workloads: {a: {gpu: L4, model: m, firstTokenMilliseconds: 5, betweenTokensMilliseconds: 1}}",
            "no workload is called 'b'; known are a",
        ),
    ],
)
def test_a_file_that_is_unusable_is_refused_by_the_field(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(text)

    with pytest.raises(SimulationError) as refused:
        read_objective(path, "b")
    assert reason in str(refused.value)


def test_a_single_workload_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(
        "workloads: {a: {gpu: L4, model: m, firstTokenMilliseconds: 5, betweenTokensMilliseconds: 1}}"
    )

    assert read_objective(path, "").first_token_milliseconds == 5
    with pytest.raises(SimulationError, match="No such file"):
        read_objective(tmp_path / "none.yaml", "")
