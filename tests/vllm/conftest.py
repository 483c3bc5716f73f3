"""One fleet of one worker with vLLM for all tests, and what they measured, printed at the end."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from _pytest.terminal import TerminalReporter

from warmfleet_testing.engine.catalog_model import pulled_catalog_model
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.router.whole_fleet import WholeFleet, whole_fleet

START_SECONDS: Final = 1200
MODEL: Final = "smollm2"
BLOCK_TOKENS: Final = 32
FIGURE: Final = "figure"


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Every test's figures; its report brings them, whichever process it ran in."""
    for report in (*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())):
        for name, line in report.user_properties if report.when == "call" else ():
            if name == FIGURE:
                terminalreporter.write_line(line)


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a line for the end of the output."""
    return lambda line: request.node.user_properties.append((FIGURE, line))


@pytest.fixture(scope="session")
def model_path() -> Path:
    return pulled_catalog_model()


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[WholeFleet]:
    # 5,800 tokens: fewer than are asked for, so that blocks are evicted.
    with whole_fleet(
        tmp_path_factory.mktemp("home"),
        model_path,
        served_name=MODEL,
        replicas=1,
        kv_cache="256Mi",
        max_model_length_tokens=2048,
        engine={"type": "VLLM", "maxRunningSequences": 8},
        block_size_tokens=BLOCK_TOKENS,
        start_seconds=START_SECONDS,
    ) as running:
        yield running


@pytest.fixture(scope="session")
def client(fleet: WholeFleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fleet.url, timeout=300, verify=NO_TLS) as opened:
        yield opened
