"""What a full garbage collection walks in a worker that serves: all streams stand still for as long."""

import os
import signal
import time

import pytest

from warmfleet_testing.engine.worker_process import running_worker
from warmfleet_testing.engine.worker_requests import CHAT, chat_body, fresh_text

COUNT_ON_SIGNAL = """
import gc, os, signal
from pathlib import Path

def count(number, frame):
    path = Path(__file__).parent / str(os.getpid())
    path.with_suffix(".new").write_text(str(len(gc.get_objects())))
    path.with_suffix(".new").rename(path)

signal.signal(signal.SIGUSR1, count)
"""
WALKED_OBJECTS = 5_000
"""Less than a millisecond. The libraries of server and engine have some 58,000 and 210,000 more."""


@pytest.fixture
def walked_objects(tmp_path):
    """Has a process that was started with `PYTHONPATH` at the folder count what a full collection walks."""

    def count(pid):
        os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + 30
        while not (written := tmp_path / str(pid)).exists():
            assert time.monotonic() < deadline, f"process {pid} has not counted its objects"
            time.sleep(0.01)
        return int(written.read_text())

    (tmp_path / "sitecustomize.py").write_text(COUNT_ON_SIGNAL)
    return count


def test_a_full_collection_walks_nothing_that_was_there_before_the_first_request(
    tmp_path, tiny_served_path, walked_objects
):
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    small = ("--kv-cache-bytes", "4000000")
    with running_worker(tiny_served_path, *small, environment={"PYTHONPATH": paths}) as worker:
        with worker.client() as client:
            for _ in range(20):
                client.post(CHAT, json=chat_body(fresh_text())).raise_for_status()
        worker.wait_until_idle()
        server, engine = walked_objects(worker.process.pid), walked_objects(worker.engine_pid)

    assert (server < WALKED_OBJECTS, engine < WALKED_OBJECTS) == (True, True), (server, engine)
