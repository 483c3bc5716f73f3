"""A kubelet passes the list of tests that process nodes pass."""

import pytest

from warmfleet_testing.node_suite.node_api import *  # noqa: F403 - its tests are collected here
from warmfleet_testing.node_suite.pods import *  # noqa: F403 - its tests are collected here

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def _image_arrives_meanwhile(needs_worker_image: bool, request: pytest.FixtureRequest) -> None:
    """The worker's image is imported meanwhile: these tests leave the node's containerd alone."""
    if needs_worker_image:
        request.getfixturevalue("arriving_image")
