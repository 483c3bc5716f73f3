"""What the API server accepts, it keeps: stored and read again, a manifest means the same."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings

from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_contracts.resources.model_deployment import ModelDeployment
from warmfleet_testing.cluster.model_deployment_api import ModelDeploymentApi
from warmfleet_testing.resources.full_manifests import ALL, Manifest, manifest_of
from warmfleet_testing.resources.generated_manifests import manifests

OBJECTIVES = Path(__file__).parents[3] / "examples/slo.yaml"
"""Of the simulator; no manifest."""
EXAMPLES = sorted({*(Path(__file__).parents[3] / "examples").glob("*.yaml")} - {OBJECTIVES})


def _parse(manifest: Manifest) -> ModelDeployment:
    return parse_manifest(manifest, origin="manifest")


def _survives(api: ModelDeploymentApi, manifest: Manifest) -> None:
    """Same meaning after the API server filled in its defaults, and again from what is written of that."""
    meant = _parse(manifest)

    answer = api.create(manifest)

    assert answer.accepted, answer.message
    stored = _parse(answer.body)
    assert stored.spec == meant.spec
    assert stored.served_names == meant.served_names
    rewritten = api.create({**manifest_of(meant), "status": {}})
    assert _parse(rewritten.body).spec == meant.spec


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_survives_the_api_server(model_deployments: ModelDeploymentApi, path: Path) -> None:
    _survives(model_deployments, yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("name", ALL)
def test_a_manifest_survives_the_api_server(model_deployments: ModelDeploymentApi, name: str) -> None:
    _survives(model_deployments, ALL[name])


@settings(max_examples=120)
@given(manifest=manifests())
def test_the_api_server_and_the_resources_accept_the_same(
    model_deployments: ModelDeploymentApi, manifest: Manifest
) -> None:
    """Two exceptions, which are not drawn: the API server alone checks the syntax of labels, and it counts
    bytes as a double, so that a fraction of a byte in a quantity of many terabytes passes it."""
    try:
        _parse(manifest)
    except ManifestError as refusal:
        reason = str(refusal)
    else:
        _survives(model_deployments, manifest)
        return
    answer = model_deployments.create(manifest)
    assert answer.code in {400, 422}, (reason, answer)


def test_null_counts_as_absent(model_deployments: ModelDeploymentApi) -> None:
    _survives(
        model_deployments,
        yaml.safe_load("""
apiVersion: warmfleet.dev/v1alpha1
kind: ModelDeployment
metadata: {name: nothing}
spec:
  model:
    servedNames:
    source: {catalog: {name: a}, huggingFace: }
    cache:
  engine:
  kvCache: {size: 1Gi, deviceMemoryPercent: }
  replicas:
  autoscaling:
  podTemplate: {spec: }
"""),
    )
