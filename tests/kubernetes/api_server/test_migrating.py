"""docs/how-to/migrating.md: every manifest and every mapping is what a real API server accepts."""

from typing import Any

import pytest
import yaml

from warmfleet_contracts.names import API_VERSION, KIND
from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.objects import desired_objects
from warmfleet_testing.cluster.model_deployment_api import ModelDeploymentApi
from warmfleet_testing.documents.documents import REPOSITORY, fences, tables
from warmfleet_testing.resources.crd_schema import root_schema, spec_fields
from warmfleet_testing.resources.desired_specs import SETTINGS

TEXT = (REPOSITORY / "docs/how-to/migrating.md").read_text()
MANIFESTS = [item for fence in fences(TEXT) for item in fence.manifests() if item.get("kind") == KIND]
MAPPINGS = [
    pytest.param(target.strip("`"), example.strip("`"), id=f"{table[0][0].strip('`')}: {source}")
    for table in tables(TEXT)
    if table[0][1:] == ["ModelDeployment", "example"]
    for source, target, example in table[1:]
]
UNIONS = ("spec.model.source", "spec.kvCache")
"""Of which exactly one member is given."""
COMMON_IN_KV_CACHE = ("blockSizeTokens", "prefixCaching")


def manifest_with(path: str, value: Any) -> dict[str, Any]:
    """A manifest in which this field is set, and everything that it contradicts is not."""
    source: dict[str, Any] = {"repository": "owner/model", "revision": "0" * 40}
    manifest: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "moved"},
        "spec": {
            "model": {"source": {"huggingFace": source}},
            "kvCache": {"deviceMemoryPercent": 90},
            "accelerator": {},
        },
    }
    if path == "spec.engine.extraArgs":
        manifest["spec"]["engine"] = {"type": "VLLM"}
    *parents, name = path.split(".")
    node: dict[str, Any] = manifest
    for depth, parent in enumerate(parents, start=1):
        node = node.setdefault(parent, {})
        if ".".join(parents[:depth]) in UNIONS:
            member = path.split(".")[depth]
            for other in set(node) - {member}:
                if member not in COMMON_IN_KV_CACHE:
                    del node[other]
    node[name] = value
    return manifest


def test_the_page_has_a_manifest_and_mappings_for_each_stack() -> None:
    assert len(MANIFESTS) == 4
    assert len(MAPPINGS) > 60


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda item: item["metadata"]["name"])
def test_what_a_stack_becomes_is_accepted(
    model_deployments: ModelDeploymentApi, manifest: dict[str, Any]
) -> None:
    parse_manifest(manifest, origin="migrating.md")
    observed = CheckedDeployment.from_object(
        {**manifest, "metadata": {**manifest["metadata"], "namespace": "models", "uid": "0123"}}
    )

    answer = model_deployments.create(manifest)

    assert answer.accepted, answer.message
    # And this release supports all of it: nothing is refused as unsupported.
    assert any(item["kind"] == "Deployment" for item in desired_objects(observed, SETTINGS))


@pytest.mark.parametrize(("path", "example"), MAPPINGS)
def test_a_mapping_is_accepted_as_it_stands(
    model_deployments: ModelDeploymentApi, path: str, example: str
) -> None:
    manifest = manifest_with(path, yaml.safe_load(example))
    parse_manifest(manifest, origin="migrating.md")

    answer = model_deployments.create(manifest)

    assert answer.accepted, answer.message
    stored: Any = answer.body
    for name in path.split("."):
        stored = stored[name]
    assert stored or path == "spec.accelerator"


def test_every_field_that_is_mapped_to_exists() -> None:
    assert root_schema()["properties"]["spec"]
    known = {field.path for field in spec_fields()} | {"metadata.name"}

    assert {mapping.values[0] for mapping in MAPPINGS} <= known
