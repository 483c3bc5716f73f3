"""What the tests of a router with keys begin with."""

from collections.abc import Iterator

import pytest

from warmfleet_testing.router.planted_keys import PlantedKeys
from warmfleet_testing.router.stub_worker import StubWorker, running_stub


@pytest.fixture
def stub() -> Iterator[StubWorker]:
    with running_stub(StubWorker(uid="w0", token="worker-token-planted")) as running:
        yield running


@pytest.fixture
def keys() -> PlantedKeys:
    return PlantedKeys()
