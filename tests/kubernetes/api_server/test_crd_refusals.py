"""The API server refuses what is wrong, and names the field; every constraint of the schema is broken."""

import re

import pytest

from warmfleet_testing.cluster.model_deployment_api import ModelDeploymentApi
from warmfleet_testing.resources.crd_schema import status_fields
from warmfleet_testing.resources.crd_violations import Violation, spec_violations, violations
from warmfleet_testing.resources.full_manifests import ALL, MINIMAL, STATUS, changed

SPEC_VIOLATIONS = spec_violations()
STATUS_VIOLATIONS = [
    violation
    for field in status_fields()
    for violation in violations(field, {"status": STATUS})
    if violation.constraint != "status type"
]


@pytest.mark.parametrize("violation", SPEC_VIOLATIONS, ids=lambda violation: violation.constraint)
def test_a_broken_constraint_is_refused_by_field(
    model_deployments: ModelDeploymentApi, violation: Violation
) -> None:
    answer = model_deployments.create(violation.manifest)

    assert answer.code in {400, 422}, answer
    assert violation.field in answer.message
    assert re.search(violation.words, answer.message), answer.message


@pytest.fixture(scope="module")
def probe(model_deployments: ModelDeploymentApi) -> str:
    observed = changed(MINIMAL, lambda manifest: manifest["metadata"].update(name="observed"))
    answer = model_deployments.create(observed, dry_run=False)
    assert answer.accepted, answer
    return "observed"


def test_a_full_status_is_accepted(model_deployments: ModelDeploymentApi, probe: str) -> None:
    answer = model_deployments.patch(probe, {"status": STATUS}, subresource="status")

    assert answer.accepted, answer
    assert answer.body["status"] == STATUS


@pytest.mark.parametrize("violation", STATUS_VIOLATIONS, ids=lambda violation: violation.constraint)
def test_a_wrong_status_is_refused_by_field(
    model_deployments: ModelDeploymentApi, probe: str, violation: Violation
) -> None:
    answer = model_deployments.patch(probe, violation.manifest, subresource="status")

    assert answer.code in {400, 422}, answer
    assert violation.field in answer.message
    assert re.search(violation.words, answer.message), answer.message


@pytest.mark.parametrize("name", ALL)
def test_a_full_manifest_is_accepted(model_deployments: ModelDeploymentApi, name: str) -> None:
    """Otherwise the refusals above could have other reasons than what was broken."""
    answer = model_deployments.create(ALL[name])

    assert answer.accepted, answer
