"""One control plane and one cluster for all tests of a run; every test makes its own namespace in it."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from warmfleet_testing.cluster import DevCluster, running_cluster
from warmfleet_testing.control_plane import ControlPlane, running_control_plane
from warmfleet_testing.installed import Installed, installed_chart
from warmfleet_testing.model_deployment_api import ModelDeploymentApi, served_model_deployments


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real API server with its controllers and scheduler, but no nodes."""
    with running_control_plane() as running:
        yield running


@pytest.fixture(scope="session")
def cluster() -> Iterator[DevCluster]:
    """A cluster of two process nodes, each with two pretended GPUs."""
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def installed(cluster: DevCluster) -> Iterator[Installed]:
    """The chart in that cluster, for models in all namespaces; its routers and operators are ready."""
    with installed_chart(cluster) as release:
        yield release


@pytest.fixture
def models(installed: Installed) -> Iterator[Installed]:
    """A namespace of the test's own, for models that this release serves."""
    with installed.within(f"models-{uuid4().hex[:8]}") as models:
        yield models


@pytest.fixture(scope="module")
def model_deployments(control_plane: ControlPlane) -> Iterator[ModelDeploymentApi]:
    """ModelDeployments served by the API server, in a namespace of the module's own; no operator."""
    with served_model_deployments(control_plane, f"crd-{uuid4().hex[:8]}") as api:
        yield api
