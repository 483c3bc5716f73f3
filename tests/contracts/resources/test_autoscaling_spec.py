"""`spec.autoscaling`: three lines are enough, and the examples do what they are named for."""

from pathlib import Path

import pytest

from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.resources.autoscaling_spec import (
    AutoscalingSpec,
    CapacityMissRule,
    ScaleDownLimits,
    ScaleUpLimits,
    UtilizationTargets,
    ZeroRule,
)
from warmfleet_contracts.resources.manifests import load_manifest, parse_manifest
from warmfleet_testing.resources.full_manifests import MINIMAL, changed

EXAMPLES = Path(__file__).parents[3] / "examples"


def autoscaling(name: str) -> AutoscalingSpec:
    """Of an example."""
    spec = load_manifest(EXAMPLES / f"{name}.yaml").spec.autoscaling
    assert spec is not None
    return spec


def test_three_lines_are_enough() -> None:
    spec = autoscaling("autoscaling")

    assert (spec.mode, spec.min_replicas, spec.max_replicas) == ("Active", 2, 8)
    assert len(spec.model_fields_set) == 3


def test_every_example_acts() -> None:
    paths = sorted(EXAMPLES.glob("autoscaling*.yaml"))

    assert len(paths) == 5
    assert {autoscaling(path.stem).mode for path in paths} == {"Active"}


def test_latency_first_has_targets_and_more_headroom_than_the_default() -> None:
    spec = autoscaling("autoscaling-latency-first")

    assert spec.latency is not None
    assert spec.latency.first_token is not None
    assert spec.latency.between_tokens is not None
    # No number of replicas meets a target below the time of a step.
    engine = load_manifest(EXAMPLES / "autoscaling-latency-first.yaml").spec.engine
    assert engine.target_step_milliseconds is not None
    assert engine.target_step_milliseconds <= 0.9 * spec.latency.between_tokens.target_milliseconds
    assert spec.utilization is not None
    assert spec.utilization.scale_up_percent < UtilizationTargets().scale_up_percent
    assert spec.scale_up is not None
    assert spec.scale_up.stabilization_seconds == 0
    assert spec.scale_down is not None
    assert spec.scale_down.stabilization_seconds > ScaleDownLimits().stabilization_seconds


def test_cost_first_fills_replicas_and_gives_them_back_sooner_than_the_default() -> None:
    spec = autoscaling("autoscaling-cost-first")

    assert spec.latency is None
    assert spec.utilization is not None
    assert spec.utilization.scale_up_percent > UtilizationTargets().scale_up_percent
    assert spec.utilization.scale_down_percent > UtilizationTargets().scale_down_percent
    assert spec.capacity_misses is not None
    assert spec.capacity_misses.mode == "Disabled"
    assert spec.scale_down is not None
    assert spec.scale_down.stabilization_seconds < ScaleDownLimits().stabilization_seconds


def test_batch_waits_for_minutes_and_grows_by_one() -> None:
    spec = autoscaling("autoscaling-batch")

    assert spec.latency is None
    assert spec.scale_up is not None
    assert spec.scale_up.replicas == 1
    assert spec.scale_up.stabilization_seconds > ScaleUpLimits().stabilization_seconds
    assert spec.capacity_misses is not None
    assert spec.capacity_misses.window_seconds > CapacityMissRule().window_seconds


def test_scale_to_zero_may_sleep_and_the_others_may_not() -> None:
    least = {path.stem: autoscaling(path.stem).min_replicas for path in EXAMPLES.glob("autoscaling*.yaml")}
    spec = autoscaling("autoscaling-scale-to-zero")

    assert [name for name, replicas in least.items() if replicas == 0] == ["autoscaling-scale-to-zero"]
    assert spec.zero is not None
    assert spec.zero.idle_seconds > ZeroRule().idle_seconds


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"policyRef": {"name": "calm"}}, ["spec.autoscaling.policyRef: unknown field"]),
        ({"zero": {}}, ["spec.autoscaling:", "zero needs minReplicas 0, and it is 1"]),
        ({"latency": {}}, ["spec.autoscaling.latency:", "at least one of firstToken, betweenTokens"]),
        ({"latency": {"firstToken": {}}}, ["spec.autoscaling.latency.firstToken.targetMilliseconds:"]),
        (
            {"latency": {"firstToken": {"targetMilliseconds": 0.5}}},
            ["spec.autoscaling.latency.firstToken.targetMilliseconds:", "0.5"],
        ),
        (
            {"utilization": {"scaleUpPercent": 60}},
            ["spec.autoscaling.utilization:", "scaleDownPercent 65 is not below scaleUpPercent 60"],
        ),
        ({"scaleDown": {"periodSeconds": 0}}, ["spec.autoscaling.scaleDown.periodSeconds:", "1"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_policy_is_refused_by_field(members: dict[str, object], words: list[str]) -> None:
    manifest = changed(MINIMAL, lambda made: made["spec"].update(autoscaling={"maxReplicas": 4, **members}))

    with pytest.raises(ManifestError) as refusal:
        parse_manifest(manifest, origin="fleet.yaml")

    for word in words:
        assert word in str(refusal.value)
