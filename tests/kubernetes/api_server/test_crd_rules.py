"""What several fields must hold together: the API server's answer to every rule, broken in every way."""

from typing import Any

import pytest

from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_testing.cluster.model_deployment_api import ModelDeploymentApi
from warmfleet_testing.resources.crd_schema import spec_fields
from warmfleet_testing.resources.full_manifests import MINIMAL, Manifest, changed

CATALOG = {"catalog": {"name": "a"}}
HUB = {"huggingFace": {"repository": "a/b", "revision": "0" * 40}}
IMAGE = {"image": {"reference": "a"}}
CLAIM = {"persistentVolumeClaim": {"claimName": "a"}}
LOCAL = {"localPath": {"path": "/a"}}
SOURCE = "spec.model.source"
ONE_SOURCE = "exactly one of catalog, huggingFace, image, persistentVolumeClaim"
ONE_CACHE = "exactly one of emptyDir, persistentVolumeClaim"
ONE_SIZE = "exactly one of size, deviceMemoryPercent"
FETCHED = "a cache is for fetched files"
SIZE = {"size": "1Gi"}
UNCACHED: dict[str, Any] = {"kvCache": {"size": "1Gi", "prefixCaching": "Disabled"}}
MORE_REPLICAS = "replicas 5 is greater than autoscaling.maxReplicas 4"
BYTES = "must be a whole number of bytes from 1 to 1Pi"
KV_BYTES = "must be a whole number of bytes from 1Mi to 1Pi"
SHARE = "a share of an accelerator's memory"


def _source(*members: dict[str, Any]) -> dict[str, Any]:
    return {"model": {"source": {name: value for member in members for name, value in member.items()}}}


def _folder(sub_path: str) -> dict[str, Any]:
    return _source({"persistentVolumeClaim": {"claimName": "a", "subPath": sub_path}})


def _names(*names: str) -> dict[str, Any]:
    return {"model": {"source": CATALOG, "servedNames": list(names)}}


def _between(least: int, most: int) -> dict[str, Any]:
    return {"autoscaling": {"minReplicas": least, "maxReplicas": most}}


def _scaled(**members: Any) -> dict[str, Any]:
    return {"autoscaling": {"maxReplicas": 4, **members}}


def _using(up_percent: int, down_percent: int | None = None) -> dict[str, Any]:
    given = {"scaleUpPercent": up_percent, "scaleDownPercent": down_percent}
    return _scaled(utilization={name: value for name, value in given.items() if value is not None})


def _cache(cache: dict[str, Any], source: dict[str, Any] = CATALOG) -> dict[str, Any]:
    return {"model": {"source": source, "cache": cache}}


def _env(*variables: dict[str, Any]) -> dict[str, Any]:
    return {"engine": {"env": list(variables)}}


def _vllm(*extra_args: str) -> dict[str, Any]:
    return {"engine": {"type": "VLLM", "extraArgs": list(extra_args)}}


CASES: list[tuple[dict[str, Any], str, str]] = [
    # One source.
    (_source(), SOURCE, ONE_SOURCE),
    (_source(CATALOG, HUB), SOURCE, ONE_SOURCE),
    (_source(CATALOG, IMAGE), SOURCE, ONE_SOURCE),
    (_source(CATALOG, CLAIM), SOURCE, ONE_SOURCE),
    (_source(HUB, IMAGE), SOURCE, ONE_SOURCE),
    (_source(HUB, CLAIM), SOURCE, ONE_SOURCE),
    (_source(IMAGE, CLAIM), SOURCE, ONE_SOURCE),
    (_source(CATALOG, HUB, IMAGE, CLAIM), SOURCE, ONE_SOURCE),
    (_source(LOCAL), f"{SOURCE}.localPath", "only `warmfleet up` accepts it"),
    (_source(LOCAL, CATALOG), f"{SOURCE}.localPath", "only `warmfleet up` accepts it"),
    (_folder("/a"), f"{SOURCE}.persistentVolumeClaim.subPath", "must be relative"),
    (_folder("../a"), f"{SOURCE}.persistentVolumeClaim.subPath", "must be relative"),
    (_folder("a/.."), f"{SOURCE}.persistentVolumeClaim.subPath", "must be relative"),
    # One cache, and only for what is fetched.
    (_cache({}), "spec.model.cache", ONE_CACHE),
    (_cache({"emptyDir": {}, **CLAIM}), "spec.model.cache", ONE_CACHE),
    (_cache({"emptyDir": {}}, IMAGE), "spec.model.cache", FETCHED),
    (_cache({"emptyDir": {}}, CLAIM), "spec.model.cache", FETCHED),
    (_cache(CLAIM, CLAIM), "spec.model.cache", FETCHED),
    (_cache({"emptyDir": {"sizeLimit": 0}}), "spec.model.cache.emptyDir.sizeLimit", BYTES),
    (_cache({"emptyDir": {"sizeLimit": "2Pi"}}), "spec.model.cache.emptyDir.sizeLimit", BYTES),
    (_cache({"emptyDir": {"sizeLimit": "1.5"}}), "spec.model.cache.emptyDir.sizeLimit", BYTES),
    # Names.
    (_names("a", "b", "a"), "spec.model.servedNames[2]", "Duplicate"),
    # One measure of KV memory.
    ({"kvCache": {}}, "spec.kvCache", ONE_SIZE),
    ({"kvCache": {"size": "1Gi", "deviceMemoryPercent": 50}}, "spec.kvCache", ONE_SIZE),
    ({"kvCache": {"deviceMemoryPercent": 50}}, "spec.kvCache.deviceMemoryPercent", SHARE),
    ({"kvCache": {"size": 1048575}}, "spec.kvCache.size", KV_BYTES),
    ({"kvCache": {"size": "1023Ki"}}, "spec.kvCache.size", KV_BYTES),
    ({"kvCache": {"size": "1025Ti"}}, "spec.kvCache.size", KV_BYTES),
    ({"kvCache": {"size": "0.0001Gi"}}, "spec.kvCache.size", KV_BYTES),
    ({"kvCache": {"size": "1048576.5"}}, "spec.kvCache.size", KV_BYTES),
    ({"kvCache": {"size": "9999999999999999999Ei"}}, "spec.kvCache.size", KV_BYTES),
    # Environment.
    (_env({"name": "A", "value": "a", "valueFrom": {}}), "spec.engine.env[0].valueFrom", "at most one"),
    (_env({"name": "A"}, {"name": "B"}, {"name": "A"}), "spec.engine.env[2]", "Duplicate"),
    (_env({"name": "WARMFLEET_HOME", "value": "/"}), "spec.engine.env[0].name", "set by warmfleet itself"),
    (_env({"name": "A"}, {"name": "WARMFLEET_"}), "spec.engine.env[1].name", "set by warmfleet itself"),
    # Flags of vLLM.
    ({"engine": {"extraArgs": ["--seed=1"]}}, "spec.engine.extraArgs", "extraArgs are vLLM's flags"),
    ({"engine": {"type": "Warmfleet", "extraArgs": ["a"]}}, "spec.engine.extraArgs", "vLLM's flags"),
    (_vllm(*["--a"] * 65), "spec.engine.extraArgs", "at most 64 items"),
    (_vllm("a" * 513), "spec.engine.extraArgs[0]", "may not be more than 512"),
    (_vllm("--a", ""), "spec.engine.extraArgs[1]", "should match"),
    (_vllm("\u00e9"), "spec.engine.extraArgs[0]", "should match"),
    # Hits to verify.
    ({"engine": {"type": "VLLM", "verifyHits": "1/9"}}, "spec.engine.verifyHits", "the engine Warmfleet"),
    (UNCACHED | {"engine": {"verifyHits": "1/9"}}, "spec.engine.verifyHits", "hits of the prefix cache"),
    ({"engine": {"verifyHits": "1/0"}}, "spec.engine.verifyHits", "should match"),
    ({"engine": {"verifyHits": "2/9"}}, "spec.engine.verifyHits", "should match"),
    ({"engine": {"verifyHits": 100}}, "spec.engine.verifyHits", "must be of type string"),
    # The target time of a step.
    (
        {"engine": {"type": "VLLM", "targetStepMilliseconds": 90}},
        "spec.engine.targetStepMilliseconds",
        "the engine Warmfleet",
    ),
    (
        {"engine": {"maxBatchedTokens": 64, "targetStepMilliseconds": 90}},
        "spec.engine.targetStepMilliseconds",
        "at most one",
    ),
    ({"engine": {"targetStepMilliseconds": 9}}, "spec.engine.targetStepMilliseconds", "10"),
    ({"engine": {"targetStepMilliseconds": 10_001}}, "spec.engine.targetStepMilliseconds", "10000"),
    # Numbers of replicas.
    (_between(3, 2), "spec.autoscaling.minReplicas", "minReplicas 3 is greater than maxReplicas 2"),
    (_between(1000, 999), "spec.autoscaling.minReplicas", "1000 is greater"),
    ({"autoscaling": {"maxReplicas": 4}, "replicas": 5}, "spec.replicas", MORE_REPLICAS),
    ({"autoscaling": {"maxReplicas": 4, "mode": "Paused"}, "replicas": 5}, "spec.replicas", MORE_REPLICAS),
    # Policies that contradict themselves.
    (_scaled(minReplicas=1, zero={}), "spec.autoscaling.zero", "zero needs minReplicas 0"),
    (_scaled(zero={"idleSeconds": 60}), "spec.autoscaling.zero", "zero needs minReplicas 0"),
    (_using(85, 85), "spec.autoscaling.utilization.scaleDownPercent", "scaleDownPercent 85 is not below"),
    (_using(50), "spec.autoscaling.utilization.scaleDownPercent", "65 is not below scaleUpPercent 50"),
    (_scaled(latency={}), "spec.autoscaling.latency", "at least one of firstToken, betweenTokens"),
    (_scaled(capacityMisses={}) | UNCACHED, "spec.autoscaling.capacityMisses", "misses of the prefix cache"),
    # A rollout that could never move.
    ({"rollout": {"maxSurge": 0}}, "spec.rollout.maxUnavailable", "both 0"),
    ({"rollout": {"maxSurge": 0, "maxUnavailable": 0}}, "spec.rollout.maxUnavailable", "both 0"),
    # Devices and registries.
    ({"accelerator": {"sharedMemorySize": 0}}, "spec.accelerator.sharedMemorySize", BYTES),
    ({"accelerator": {"sharedMemorySize": "1.1Ki"}}, "spec.accelerator.sharedMemorySize", BYTES),
    ({"accelerator": {"resourceName": "gpu"}}, "spec.accelerator.resourceName", "should match"),
    ({"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}, "spec.imagePullSecrets[1]", "Duplicate"),
]  # fmt: skip


def _manifest(members: dict[str, Any]) -> Manifest:
    return changed(MINIMAL, lambda manifest: manifest["spec"].update(members))


@pytest.mark.parametrize(("members", "field", "expected"), CASES, ids=str)
def test_a_broken_rule_is_refused_by_field(
    model_deployments: ModelDeploymentApi, members: dict[str, Any], field: str, expected: str
) -> None:
    answer = model_deployments.create(_manifest(members))

    assert answer.code == 422, answer
    assert f"{field}: " in answer.message
    assert expected in answer.message


@pytest.mark.parametrize(("members", "field", "expected"), CASES, ids=str)
def test_a_broken_rule_is_refused_by_warmfleet_too(
    members: dict[str, Any], field: str, expected: str
) -> None:
    with pytest.raises(ManifestError, match=r"fleet\.yaml: spec"):
        parse_manifest(_manifest(members), origin="fleet.yaml")


def test_every_rule_of_the_schema_is_broken_above() -> None:
    rules = [rule for field in spec_fields() for rule in field.schema.get("x-kubernetes-validations", ())]
    # A rule with a message of its own making begins with the same word as the plain one.
    messages = [
        rule["message"].partition(" ")[0] if "messageExpression" in rule else rule["message"]
        for rule in rules
    ]

    untried = [
        message
        for message in messages
        if not any(expected in message or message in expected for _, _, expected in CASES)
    ]

    assert len(rules) >= 14
    assert untried == []
