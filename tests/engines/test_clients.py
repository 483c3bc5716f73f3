"""Unchanged clients against a whole fleet of each engine: everything goes well and nothing is sent twice.

Each script runs in its client's own environment (`make clients`) and prints per scenario its result and how
many requests it sent; the router's log has how many came.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from warmfleet_testing.engine.worker_process import TINY_NAME
from warmfleet_testing.processes.tested_engines import EngineUnderTest
from warmfleet_testing.router.keyed_fleet import KeyedFleet, keyed_fleet
from warmfleet_testing.router.whole_fleet import wait_for

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = ROOT / "tests" / "clients"
ENVIRONMENT: Final = {
    "PATH": os.environ["PATH"],
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # its list of prices comes from the network otherwise
}
SCRIPT_SECONDS: Final = 240
LEAST_SCENARIOS: Final = 20


@dataclass(frozen=True)
class Client:
    """A script of scenarios, and its client's name in the table of clients."""

    script: str
    environment: str
    package: str
    flavours: tuple[str, ...] = ("",)

    @property
    def python(self) -> Path:
        return ROOT / ".venv-clients" / self.environment / "bin" / "python"


CLIENTS: Final = (
    Client("openai_sdk.py", "openai-1", "openai", ("sync", "async")),
    Client("openai_sdk.py", "openai-2", "openai", ("sync", "async")),
    Client("openai_sdk.py", "openai-3", "openai", ("sync", "async")),
    Client("langchain_chat.py", "langchain", "langchain-openai"),
    Client("litellm_calls.py", "litellm", "litellm"),
)


@pytest.fixture(scope="module")
def fleet(engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedFleet]:
    with keyed_fleet(tmp_path_factory.mktemp("fleet"), engine) as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.environment)
def test_a_client_passes_every_scenario_and_sends_each_request_once(
    client: Client, fleet: KeyedFleet, tmp_path: Path
) -> None:
    assert client.python.exists(), f"{client.environment} is not installed; run: make clients"
    results = results_of(client.script, str(client.python), fleet, tmp_path)

    for flavour in client.flavours:
        names = [result["name"] for result in results if result["name"].startswith(flavour)]
        assert len(names) == len(set(names)) >= LEAST_SCENARIOS
        row = table_row(client.package, pinned_version(client), flavour)
        assert int(row[3]) == len(names), f"docs/reference/clients.md differs: {row}"


def test_the_shapes_of_vllms_benchmark_succeed_a_thousand_times(fleet: KeyedFleet, tmp_path: Path) -> None:
    results = results_of("vllm_bench_shapes.py", sys.executable, fleet, tmp_path)

    assert sum(result["requests"] for result in results if "all succeed" in result["name"]) == 1000


def test_the_shapes_of_open_webui_are_served(fleet: KeyedFleet, tmp_path: Path) -> None:
    assert len(results_of("open_webui_shapes.py", sys.executable, fleet, tmp_path)) == 5


def results_of(script: str, python: str, fleet: KeyedFleet, home: Path) -> list[dict[str, Any]]:
    """What a script prints, after the checks that every script has to pass."""
    before = len(fleet.requests())
    finished = subprocess.run(
        [
            python,
            str(SCRIPTS / "scenarios" / script),
            f"{fleet.url}/v1",
            TINY_NAME,
            fleet.key,
            fleet.other_key,
            fleet.narrow_key,
        ],
        env={**ENVIRONMENT, "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS,
        check=False,
    )
    lines = finished.stdout.splitlines()  # LiteLLM adds some of its own
    results = [json.loads(line) for line in lines if line.startswith("{")]
    assert finished.returncode == 0, finished.stderr[-4000:]
    assert [result for result in results if not result["ok"]] == [], fleet.worker_log()

    # Closed streams and timeouts have left no work behind, and no client has asked twice.
    fleet.worker.wait_until_idle()
    sent = sum(result["requests"] for result in results)
    wait_for(lambda: len(fleet.requests()) - before >= sent, f"the router has logged {sent} requests")
    assert len(fleet.requests()) - before == sent
    return results


def pinned_version(client: Client) -> str:
    """The version that the client's requirements pin."""
    text = (SCRIPTS / "requirements" / f"{client.environment}.txt").read_text()
    (version,) = (
        line.split("==")[1].split()[0] for line in text.splitlines() if line.startswith(f"{client.package}==")
    )
    return version


def table_row(package: str, version: str, flavour: str) -> list[str]:
    """The cells of a client's row in the reference: client, version, flavour, scenarios, what differs."""
    text = (ROOT / "docs/reference/clients.md").read_text()
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    (row,) = (row for row in rows if row[:3] == [package, version, flavour or "all"])
    return row


def test_the_table_of_clients_names_the_pinned_versions() -> None:
    for client in CLIENTS:
        for flavour in client.flavours:
            assert table_row(client.package, pinned_version(client), flavour)
