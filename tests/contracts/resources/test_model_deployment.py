"""The manifest: what it accepts, what it refuses, and whether a refusal names the field and the reason."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.resources import fields, model_deployment, model_spec
from warmfleet_contracts.resources.manifests import MAX_MANIFEST_BYTES, load_manifest
from warmfleet_contracts.resources.quantities import format_bytes, parse_bytes
from warmfleet_testing.resources.full_manifests import FULL, manifest_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "smollm2.yaml"

SMALLEST = """
apiVersion: warmfleet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: tiny}
spec:
  model: {source: {catalog: {name: smollm2-135m-instruct}}}
  kvCache: {size: 64Mi}
"""

BOOKKEEPING = {"namespace": "team-a", "uid": 1, "generation": 3}
EVERYTHING = yaml.safe_dump(
    {**FULL, "metadata": {**FULL["metadata"], **BOOKKEEPING}, "status": {"readyReplicas": 2}}
)
"""As the API server returns it."""


def test_the_example_is_a_valid_deployment_of_two_workers() -> None:
    deployment = load_manifest(EXAMPLE)

    assert deployment.served_names == ("smollm2-135m-instruct",)
    assert deployment.spec.replicas == 2
    assert deployment.spec.kv_cache.size_bytes == 512 * 2**20


OBJECTIVES = EXAMPLE.parent / "slo.yaml"
"""Of the simulator; no manifest."""


@pytest.mark.parametrize(
    "path", sorted({*EXAMPLE.parent.glob("*.yaml")} - {OBJECTIVES}), ids=lambda path: path.stem
)
def test_every_example_is_valid_and_begins_with_a_comment(path: Path) -> None:
    """tests/kubernetes shows them to a real API server."""
    deployment = load_manifest(path)

    assert deployment.served_names
    assert path.read_text().startswith("# ")


def test_the_smallest_manifest_gets_the_documented_defaults() -> None:
    deployment = load_manifest(SMALLEST)

    assert deployment.served_names == ("tiny",)
    assert deployment.spec.replicas == 1
    assert deployment.spec.engine.max_running_sequences == 64
    assert deployment.spec.engine.max_model_length_tokens is None
    assert deployment.spec.routing.policy == "LowestCost"
    assert deployment.spec.kv_cache.block_size_tokens == 16


@pytest.mark.parametrize(
    "text", [SMALLEST, EVERYTHING, EXAMPLE.read_text()], ids=["smallest", "all", "example"]
)
def test_a_manifest_survives_the_round_trip(text: str) -> None:
    deployment = load_manifest(text)

    written = yaml.safe_dump(manifest_of(deployment))

    assert load_manifest(written) == deployment
    assert manifest_of(load_manifest(written)) == manifest_of(deployment)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("size: 64Mi", "size: 64Mb", ["spec.kvCache.size:", "64Mb", "512Mi"]),
        ("size: 64Mi", "size: 100", ["spec.kvCache.size:", "1048576"]),
        (
            "size: 64Mi",
            "size: 64Mi, deviceMemoryPercent: 50",
            ["spec.kvCache:", "exactly one", "size and device"],
        ),
        ("size: 64Mi", "dtype: Auto", ["spec.kvCache:", "exactly one of size, deviceMemoryPercent", "none"]),
        ("size: 64Mi", "deviceMemoryPercent: 96", ["spec.kvCache.deviceMemoryPercent:", "95"]),
        (
            "size: 64Mi",
            "size: 64Mi, blockSizeTokens: 17",
            ["spec.kvCache.blockSizeTokens:", "16, 32, 64, 128"],
        ),
        (
            "size: 64Mi",
            "size: 64Mi, prefixCacheing: Enabled",
            ["spec.kvCache.prefixCacheing:", "prefixCaching?"],
        ),
        ("catalog: {name: smollm2-135m-instruct}", "", ["spec.model.source:", "exactly one", "none"]),
        ("catalog: {name: smollm2", "image: {reference: x}, catalog: {name: smollm2", ["catalog and image"]),
        (
            "catalog: {name: smollm2-135m-instruct}",
            "localPath: {path: /m}",
            ["spec.model.source:", "warmfleet up"],
        ),
        ("{catalog: {name: smollm2-135m-instruct}}", "smollm2", ["spec.model.source:", "expected an object"]),
        ("name: tiny", "name: Tiny", ["metadata.name:", "'Tiny'"]),
        ("name: tiny", f"name: {'t' * 53}", ["metadata.name:", "52"]),
        ("name: tiny", "nam: tiny", ["metadata.name: is required", "metadata.nam: unknown field"]),
        ("spec:", "spec:\n  replicas: '2'", ["spec.replicas:", "'2'", "integer"]),
        ("spec:", "spec:\n  replicas: 1.5", ["spec.replicas:", "1.5"]),
        ("spec:", "spec:\n  replicas: -1", ["spec.replicas:", "0"]),
        ("spec:", "spec:\n  replicas: 1\n  replicas: 2", ["'replicas' stands twice"]),
        ("spec:", "spec:\n  kv_cache: {size: 1Gi}", ["spec.kv_cache: unknown field", "kvCache?"]),
        ("spec:", "spec:\n  engine: {type: SGLang}", ["spec.engine.type:", "Warmfleet", "VLLM"]),
        (
            "spec:",
            "spec:\n  engine: {dtype: FP8}",
            ["spec.engine.dtype:", "Auto, BFloat16, Float16, Float32"],
        ),
        ("spec:", "spec:\n  engine: {extraArgs: [-tp]}", ["spec.engine:", "vLLM's flags", "Warmfleet"]),
        ("spec:", "spec:\n  engine: {type: VLLM, extraArgs: [a, '']}", ["spec.engine.extraArgs[1]:"]),
        ("spec:", "spec:\n  engine: {type: VLLM, verifyHits: 1/9}", ["spec.engine:", "Warmfleet", "VLLM"]),
        ("spec:", "spec:\n  engine: {verifyHits: 1/09}", ["spec.engine.verifyHits:"]),
        ("spec:", "spec:\n  engine: {type: VLLM, targetStepMilliseconds: 50}", ["spec.engine:", "VLLM"]),
        (
            "spec:",
            "spec:\n  engine: {maxBatchedTokens: 9, targetStepMilliseconds: 50}",
            ["spec.engine:", "at most one of maxBatchedTokens, targetStepMilliseconds"],
        ),
        ("spec:", "spec:\n  engine: {env: [{name: 1A}]}", ["spec.engine.env[0].name:"]),
        ("spec:", "spec:\n  engine: {env: [{name: WARMFLEET_HOME, value: x}]}", ["spec.engine.env[0]:"]),
        ("spec:", "spec:\n  autoscaling: {minReplicas: 3, maxReplicas: 2}", ["spec.autoscaling:", "3", "2"]),
        ("spec:", "spec:\n  rollout: {maxSurge: 0}", ["spec.rollout:", "both 0"]),
        ("model: {", "model: {servedNames: [a, a], ", ["spec.model:", "twice"]),
        ("model: {", "model: {servedNames: ['a b'], ", ["spec.model.servedNames[0]:", "'a b'"]),
        ("kind: ModelDeployment", "kind: Deployment", ["kind:", "'Deployment'", "expected ModelDeployment"]),
        ("v1alpha1", "v2", ["apiVersion:", "expected warmfleet.dev/v1alpha1"]),
        ("\napiVersion", "\n---\nkind: Namespace\n---\napiVersion", ["2 documents", "exactly one"]),
        ("\napiVersion", "\n- apiVersion", [":"]),
        ("{name: tiny}", "!!python/object/apply:os.system [id]", ["not valid YAML"]),
        ("{name: tiny}", "[" * 5000, ["nested too deeply"]),
        ("{name: tiny}", "{name: tiny", ["not valid YAML"]),
    ],
)
def test_a_wrong_manifest_is_refused_by_field(
    tmp_path: Path, before: str, after: str, words: list[str]
) -> None:
    assert before in SMALLEST
    path = tmp_path / "fleet.yaml"
    path.write_text(SMALLEST.replace(before, after))

    with pytest.raises(ManifestError) as refusal:
        load_manifest(path)

    assert str(refusal.value).startswith(str(path))
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "no document"),
        (b"\xff\xfe\xff", "UTF-8"),
        (b"#" * (MAX_MANIFEST_BYTES + 1), "larger than"),
        (b"7", "object"),
    ],
    ids=["empty", "binary", "too large", "scalar"],
)
def test_a_file_that_is_no_manifest_is_refused_by_name(tmp_path: Path, content: bytes, word: str) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(content)

    with pytest.raises(ManifestError, match=word):
        load_manifest(path)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"absent\.yaml: no such file"):
        load_manifest(tmp_path / "absent.yaml")


def test_a_local_path_is_for_the_local_fleet_only() -> None:
    text = SMALLEST.replace("catalog: {name: smollm2-135m-instruct}", "localPath: {path: /models/tiny}")

    deployment = load_manifest(text, local=True)

    assert deployment.spec.model.source.local_path is not None
    assert deployment.spec.model.source.local_path.path == "/models/tiny"
    with pytest.raises(ManifestError, match="only `warmfleet up`"):
        load_manifest(text)


def test_every_field_explains_itself() -> None:
    models = [
        value
        for module in (fields, model_spec, model_deployment)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, BaseModel) and value is not BaseModel
    ]

    silent = [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if not field.description
    ]

    assert len(models) > 20
    assert silent == []


@pytest.mark.parametrize(
    ("quantity", "size_bytes"),
    [
        ("512Mi", 512 * 2**20),
        ("1.5Gi", 3 * 2**29),
        ("1k", 1000),
        ("2G", 2 * 10**9),
        ("1e9", 10**9),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("0", 0),
        (4096, 4096),
        (".5Ki", 512),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(quantity: object, size_bytes: int) -> None:
    assert parse_bytes(quantity) == size_bytes


@pytest.mark.parametrize(
    "quantity",
    ["", "Mi", "512 Mi", "512mb", "-1Mi", "100m", "0.5", "8Ei", "1e99", "1ki", "9" * 400, True, 1.5, None],
)
def test_what_is_no_whole_number_of_bytes_is_refused(quantity: object) -> None:
    with pytest.raises(ValueError):
        parse_bytes(quantity)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_a_written_quantity_is_the_same_number_of_bytes(size_bytes: int) -> None:
    assert parse_bytes(format_bytes(size_bytes)) == size_bytes
