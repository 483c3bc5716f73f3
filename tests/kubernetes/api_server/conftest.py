"""One control plane for all tests of this folder, ended with the last; each makes its own namespace in it."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from warmfleet_testing.cluster.control_plane import ControlPlane, running_control_plane
from warmfleet_testing.cluster.model_deployment_api import ModelDeploymentApi, served_model_deployments


@pytest.fixture(scope="package")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server with its controllers and scheduler, but no nodes."""
    with running_control_plane() as running:
        yield running


@pytest.fixture(scope="module")
def model_deployments(control_plane: ControlPlane) -> Iterator[ModelDeploymentApi]:
    """ModelDeployments served by the API server, in a namespace of the module's own; no operator."""
    with served_model_deployments(control_plane, f"crd-{uuid4().hex[:8]}") as api:
        yield api
