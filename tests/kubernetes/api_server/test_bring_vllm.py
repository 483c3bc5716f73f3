"""docs/how-to/vllm.md: the manifest and every mapping are what a real API server accepts."""

from typing import Any

import pytest
import yaml

from warmfleet_contracts.names import API_VERSION, KIND
from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.objects import desired_objects
from warmfleet_operator.settings import OperatorSettings
from warmfleet_testing.cluster.model_deployment_api import ModelDeploymentApi
from warmfleet_testing.documents.documents import REPOSITORY, fences, tables

TEXT = (REPOSITORY / "docs/how-to/vllm.md").read_text()
COMMIT = "0" * 40
SETTINGS = OperatorSettings(release_namespace="warmfleet", worker_vllm_image="registry.example/worker-vllm:1")
(BROUGHT,) = (item for fence in fences(TEXT) for item in fence.manifests() if item.get("kind") == KIND)
(MAPPINGS,) = (table for table in tables(TEXT) if table[0] == ["vLLM", "ModelDeployment", "example"])
(WORDS,) = (table for table in tables(TEXT) if table[0] == ["flag", "in `extraArgs`"])
CASES = [(path.strip("`"), example.strip("`")) for _, path, example in MAPPINGS[1:]] + [
    ("spec.engine.extraArgs", words.strip("`")) for _, words in WORDS[1:]
]


def manifest_with(path: str, value: Any) -> dict[str, Any]:
    """A deployment of vLLM in which this field is set, and no other member of its union."""
    model: dict[str, Any] = {"source": {"huggingFace": {"repository": "owner/model"}}}
    memory: dict[str, Any] = {"deviceMemoryPercent": 90}
    if path.startswith("spec.model.source.persistentVolumeClaim"):
        model["source"] = {}
    if path == "spec.kvCache.size":
        memory = {}
    manifest: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "brought"},
        "spec": {"model": model, "kvCache": memory, "accelerator": {}, "engine": {"type": "VLLM"}},
    }
    *parents, name = path.split(".")
    node = manifest
    for parent in parents:
        node = node.setdefault(parent, {})
    node[name] = value
    return manifest


def supported(manifest: dict[str, Any]) -> bool:
    """Whether this release makes a Deployment of it, with its branch resolved."""
    parse_manifest(manifest, origin="vllm.md")
    metadata = {**manifest["metadata"], "namespace": "models", "uid": "0123"}
    checked = CheckedDeployment.from_object({**manifest, "metadata": metadata})
    if checked.spec.model.source.hugging_face is not None:
        checked = checked.at_commit(COMMIT)
    return any(item["kind"] == "Deployment" for item in desired_objects(checked, SETTINGS))


def test_what_vllm_serve_becomes_is_accepted(model_deployments: ModelDeploymentApi) -> None:
    assert supported(BROUGHT)

    answer = model_deployments.create(BROUGHT)

    assert answer.accepted, answer.message


@pytest.mark.parametrize(("path", "example"), CASES)
def test_a_flag_is_accepted_where_the_page_puts_it(
    model_deployments: ModelDeploymentApi, path: str, example: str
) -> None:
    manifest = manifest_with(path, yaml.safe_load(example))
    assert supported(manifest)

    answer = model_deployments.create(manifest)

    assert answer.accepted, answer.message
    stored: Any = answer.body
    for name in path.split("."):
        stored = stored[name]
    assert stored


def test_the_command_line_and_the_manifest_name_the_same() -> None:
    """Each flag of the example before stands in the manifest after, but for the server's port."""
    (before,) = (fence.text for fence in fences(TEXT) if fence.text.startswith("vllm serve"))
    flags = {part.split()[0] for part in before.replace("\\\n", " ").split(" --")[1:]}
    mapped = {word.removeprefix("--") for row in MAPPINGS[1:] for word in row[0].replace("`", "").split()}
    words = BROUGHT["spec"]["engine"]["extraArgs"]

    assert flags - mapped == {"kv-cache-dtype", "port"}
    assert words == ["--kv-cache-dtype", "fp8"]
