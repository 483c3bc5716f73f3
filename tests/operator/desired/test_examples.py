"""Every manifest that users are given to begin with can be run by the operator."""

from pathlib import Path

import pytest
import yaml

from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.objects import desired_objects
from warmfleet_testing.resources.desired_specs import SETTINGS

OBJECTIVES = Path(__file__).parents[3] / "examples/slo.yaml"
"""Of the simulator; no manifest."""
EXAMPLES = sorted({*(Path(__file__).parents[3] / "examples").glob("*.yaml")} - {OBJECTIVES})


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_becomes_workers(path: Path) -> None:
    manifest = yaml.safe_load(path.read_text())
    manifest["metadata"] |= {"namespace": "models", "uid": "0123"}

    objects = desired_objects(CheckedDeployment.from_object(manifest), SETTINGS)

    (workers,) = [item for item in objects if item["kind"] == "Deployment"]
    assert workers["spec"]["replicas"] == manifest["spec"].get("replicas", 1)


def test_every_source_of_a_model_has_an_example() -> None:
    sources = [yaml.safe_load(path.read_text())["spec"]["model"]["source"] for path in EXAMPLES]

    assert {name for source in sources for name in source} == {
        "catalog",
        "huggingFace",
        "image",
        "persistentVolumeClaim",
    }
