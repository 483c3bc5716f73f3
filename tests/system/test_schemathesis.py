"""Router and worker, fuzzed along the documents that they serve themselves.

All phases: the document's examples, each schema's edges, positive and negative random data, and chains along
the links. `WARMFLEET_FUZZ_EXAMPLES` sets the number of random requests per operation; the default is what
fits into a check before each change. Before a release, with another seed each time:

    WARMFLEET_FUZZ_EXAMPLES=1000 WARMFLEET_FUZZ_SEED=2 .venv/bin/pytest tests/system/test_schemathesis.py
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from warmfleet_contracts.openapi import openapi_document
from warmfleet_contracts.openapi.operations import EXAMPLE_MODEL
from warmfleet_testing.engine.worker_process import WorkerProcess, running_worker, tiny_served_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.router.router_process import RouterProcess, router_process

FOLDER = Path(__file__).parent / "schemathesis"
EXAMPLES = int(os.environ.get("WARMFLEET_FUZZ_EXAMPLES", "10"))
SEED = os.environ.get("WARMFLEET_FUZZ_SEED", "1")
ENDLESS = "/internal/kv-events"
"""Its answer never ends, and so would a request for it; tests/worker asks it right and wrong."""

pytestmark = pytest.mark.timeout(300 + 60 * EXAMPLES)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """Of a short context, because most requests do not limit the length of their answer."""
    model = tiny_served_model(tmp_path_factory.mktemp("model"))
    flags = ("--served-name", EXAMPLE_MODEL, "--kv-cache-bytes", "4000000", "--max-model-length-tokens", "64")
    flags = (*flags, "--uid", "fuzzed")
    with running_worker(model, *flags) as worker:
        yield worker


@pytest.fixture(scope="module")
def router(worker: WorkerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with router_process({"fuzzed": worker}, tmp_path_factory.mktemp("home")) as router:
        yield router


def fuzz(url: str, folder: Path, *flags: str, operations: int) -> None:
    """Run all phases against `url`; every operation has been tested, and no check has failed."""
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(FOLDER / "schemathesis.toml")]
    document = folder / "document.json"  # read from its own address, it would leave that operation out
    document.write_text(httpx.get(f"{url}/openapi.json", verify=NO_TLS).raise_for_status().text)
    run = ["run", str(document), "--url", url, "--max-examples", str(EXAMPLES), "--seed", SEED, *flags]
    finished = subprocess.run(
        [*command, *run],
        cwd=folder,
        env={
            **os.environ,
            "SCHEMATHESIS_HOOKS": "hooks",
            "PYTHONPATH": os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]),
            "WARMFLEET_FUZZED_MODEL": EXAMPLE_MODEL,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    report = finished.stdout + finished.stderr
    assert finished.returncode == 0, report
    selected = re.search(r"Selected: (\d+)/\d+\s+Tested: (\d+)", report)
    assert selected is not None, report
    assert [int(count) for count in selected.groups()] == [operations, operations]


def operation_count(server: str) -> int:
    return sum(len(operations) for operations in openapi_document(server)["paths"].values())


def test_nothing_along_the_document_breaks_the_router(
    router: RouterProcess, worker: WorkerProcess, tmp_path: Path
) -> None:
    engine_pid = worker.engine_pid

    fuzz(router.url, tmp_path, operations=operation_count("router"))

    assert worker.engine_pid == engine_pid
    assert worker.wait_until_idle()["pinned_blocks"] == 0
    assert not [line for line in [*router.log_lines(), *worker.log_lines()] if line["level"] == "error"]


def test_nothing_along_the_document_breaks_a_worker(worker: WorkerProcess, tmp_path: Path) -> None:
    engine_pid = worker.engine_pid

    fuzz(worker.url, tmp_path, "--exclude-path", ENDLESS, operations=operation_count("worker") - 1)

    assert worker.engine_pid == engine_pid
    assert worker.wait_until_idle()["pinned_blocks"] == 0
    assert not [line for line in worker.log_lines() if line["level"] == "error"]
