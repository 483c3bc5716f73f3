"""ModelDeployments of the API server are read tolerantly: its definition may be newer than the operator."""

import copy

import pytest

from warmfleet_contracts.errors import ManifestError
from warmfleet_contracts.resources.manifests import parse_manifest
from warmfleet_operator.desired.checked_deployment import CheckedDeployment
from warmfleet_operator.desired.objects import desired_objects
from warmfleet_testing.resources.desired_specs import SETTINGS
from warmfleet_testing.resources.observations import deployment


def newer() -> dict:
    """With defaults of a newer definition, at the top of the spec and inside of it."""
    made = deployment(engine={}, autoscaling={"maxReplicas": 4})
    for fields in (made["spec"], *(made["spec"][name] for name in ("engine", "kvCache", "autoscaling"))):
        fields["ofANewerRelease"] = {"enabled": True}
    return made


def test_defaults_of_a_newer_definition_change_no_object() -> None:
    older = deployment(engine={}, autoscaling={"maxReplicas": 4})

    made = [desired_objects(CheckedDeployment.from_object(item), SETTINGS) for item in (older, newer())]

    assert made[0] == made[1]


@pytest.mark.parametrize("field", ["labels", "annotations", "finalizers"])
def test_users_may_add_metadata_without_limit(field) -> None:
    made = deployment()
    names = [f"example.com/of-a-tool-{number}" for number in range(65)]
    made["metadata"][field] = names if field == "finalizers" else dict.fromkeys(names, "x")
    made["metadata"]["ofANewerApiServer"] = "x"

    assert CheckedDeployment.from_object(made).name == "m"


def test_a_file_with_an_unknown_field_is_still_refused() -> None:
    manifest = copy.deepcopy(newer())
    manifest["metadata"] = {"name": "m"}

    with pytest.raises(ManifestError, match="ofANewerRelease: unknown field"):
        parse_manifest(manifest, origin="m.yaml")


def test_a_value_that_this_version_does_not_know_is_refused() -> None:
    with pytest.raises(ManifestError, match="blockSizeTokens"):
        CheckedDeployment.from_object(deployment(kvCache={"size": "64Mi", "blockSizeTokens": 256}))
