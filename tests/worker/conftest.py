"""One tiny worker for all tests of the server that leave it as they found it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from warmfleet_testing.engine.worker_process import WorkerProcess, running_worker, tiny_served_model


@pytest.fixture(scope="session")
def tiny_served_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_served_model(tmp_path_factory.mktemp("tiny-served"))


@pytest.fixture(scope="session")
def shared_worker(tiny_served_path: Path) -> Iterator[WorkerProcess]:
    """Without a token, with room for 4 MB of KV: 488 blocks of 16 tokens."""
    with running_worker(tiny_served_path, "--kv-cache-bytes", "4000000", "--uid", "shared") as worker:
        yield worker


@pytest.fixture
def client(shared_worker: WorkerProcess) -> Iterator[httpx.Client]:
    with shared_worker.client() as client:
        yield client
