"""One control plane and one cluster for all tests of a run; every test makes its own namespace in it."""

from collections.abc import Iterator

import pytest

from warmfleet_testing.cluster import DevCluster, running_cluster
from warmfleet_testing.control_plane import ControlPlane, running_control_plane


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
