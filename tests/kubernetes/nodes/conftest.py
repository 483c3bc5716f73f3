"""One cluster for all tests of this folder, ended with the last; each makes its own namespace in it."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from warmfleet_testing.cluster.cluster import DevCluster, running_cluster
from warmfleet_testing.cluster.installed import Installed, installed_chart
from warmfleet_testing.cluster.pods import Pods, namespace_of_its_own


@pytest.fixture(scope="package")
def cluster() -> Iterator[DevCluster]:
    """A cluster of two process nodes, each with two pretended GPUs."""
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="package")
def installed(cluster: DevCluster) -> Iterator[Installed]:
    """The chart in that cluster, for models in all namespaces; its routers and operators are ready."""
    with installed_chart(cluster) as release:
        yield release


@pytest.fixture
def models(installed: Installed) -> Iterator[Installed]:
    """A namespace of the test's own, for models that this release serves."""
    with installed.within(f"models-{uuid4().hex[:8]}") as models:
        yield models


@pytest.fixture
def pods(cluster: DevCluster, request: pytest.FixtureRequest) -> Iterator[Pods]:
    """A namespace of the test's own, for plain pods."""
    with namespace_of_its_own(cluster, request.node.originalname) as own:
        yield own
