"""The policy of a spec."""

from dataclasses import fields

from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec
from warmfleet_operator.scaling.policy import AutoscalingPolicy, LatencyGoal

EVERYTHING = {
    "mode": "Advisory",
    "minReplicas": 0,
    "maxReplicas": 9,
    "utilization": {"scaleUpPercent": 80, "scaleDownPercent": 50},
    "latency": {
        "firstToken": {"percentile": 90, "targetMilliseconds": 2000},
        "betweenTokens": {"percentile": 99, "targetMilliseconds": 80},
    },
    "capacityMisses": {
        "mode": "Disabled",
        "percent": 20,
        "windowSeconds": 60,
        "pauseAfterShrinkSeconds": 600,
    },
    "scaleUp": {
        "replicas": 4,
        "percent": 50,
        "periodSeconds": 15,
        "stabilizationSeconds": 5,
        "panicPercent": 150,
        "panicSeconds": 90,
    },
    "scaleDown": {"periodSeconds": 120, "stabilizationSeconds": 600, "paybackSeconds": 900},
    "zero": {"idleSeconds": 1800, "holdSeconds": 120},
}
NOT_OF_THE_SPEC = {"gap_seconds", "backlog_seconds", "latency_margin_percent", "missing_grace_seconds"}


def test_three_lines_mean_the_defaults_of_every_part():
    parts = {part: {} for part in ("utilization", "capacityMisses", "scaleUp", "scaleDown", "zero")}
    three, all_parts = (
        AutoscalingPolicy.of(AutoscalingSpec.model_validate({"minReplicas": 0, "maxReplicas": 8, **more}))
        for more in ({}, parts)
    )

    assert three == all_parts


def test_every_field_of_the_spec_reaches_the_policy():
    policy, default = (
        AutoscalingPolicy.of(AutoscalingSpec.model_validate(spec))
        for spec in (EVERYTHING, {"maxReplicas": 8})
    )

    same = {item.name for item in fields(policy) if getattr(policy, item.name) == getattr(default, item.name)}

    assert same == NOT_OF_THE_SPEC
    assert policy.first_token == LatencyGoal(percentile=90, target_milliseconds=2000)
    assert policy.between_tokens == LatencyGoal(percentile=99, target_milliseconds=80)
