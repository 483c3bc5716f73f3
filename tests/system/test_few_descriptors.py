"""A router with few descriptors holds as many connections as it has room for, and goes on answering."""

import contextlib
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from warmfleet_testing.engine.worker_process import WorkerProcess, running_worker, tiny_served_model
from warmfleet_testing.processes.process_limits import open_files
from warmfleet_testing.router.router_process import RouterProcess, router_process


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with running_worker(tiny_served_model(tmp_path_factory.mktemp("model")), "--uid", "w0") as one:
        yield one


def open_connections(router: RouterProcess, count: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Connections of `count` clients that send nothing."""
    address = urlsplit(router.url)
    return [
        stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=10))
        for _ in range(count)
    ]


def answers(router: RouterProcess) -> bool:
    with router.client() as client:
        response = client.post(
            "/v1/completions", json={"model": "tiny", "prompt": "hello", "max_tokens": 3, "ignore_eos": True}
        )
    return response.status_code == 200 and response.json()["usage"]["completion_tokens"] == 3


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_under_a_low_soft_limit_a_router_takes_what_the_hard_one_allows(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    with (
        router_process(
            {"w0": worker}, tmp_path, "--max-connections", "1000", limits=open_files(100, 8192)
        ) as router,
        contextlib.ExitStack() as stack,
    ):
        connections = open_connections(router, 400, stack)

        assert answers(router)
        assert all(map(is_open, connections))
        assert "fewer connections" not in router.log_text()


def test_under_a_low_hard_limit_the_longest_idle_are_closed_and_every_request_is_answered(
    worker: WorkerProcess, tmp_path: Path
) -> None:
    with (
        router_process({"w0": worker}, tmp_path, limits=open_files(256, 256)) as router,
        contextlib.ExitStack() as stack,
    ):
        (warning,) = [line for line in router.log_lines() if line["event"].startswith("fewer connections")]
        connections = open_connections(router, 400, stack)

        assert answers(router)
        assert warning["connections"] == 64
        assert sum(map(is_open, connections)) < 64
        assert is_open(connections[-1])
        assert "Too many open files" not in router.log_text()
