"""A wall clock that jumps moves nothing but the dates that are shown."""

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmfleet_testing.router.router_fixture import running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

ROOT = Path(__file__).parents[2]
WALL_CLOCKS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}
SHOWN = {
    "router/warmfleet_router/routing/decisions.py": "decided_at, a date in the record",
    "router/warmfleet_router/api/models.py": "`created` of a model",
    "worker/warmfleet_worker/app.py": "`created` of a model",
    "worker/warmfleet_worker/server/openai_endpoints.py": "`created` of an answer",
}
"""Modules that may read the wall clock, and for what: dates that users and clients see, and no decision."""


def wall_clock_reads(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in WALL_CLOCKS:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (node.lineno for name in node.names if name.name in {"time", "time_ns"})


@pytest.mark.parametrize("component", ["router", "worker"])
def test_only_dates_that_are_shown_come_from_the_wall_clock(component: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix(): list(wall_clock_reads(path))
        for path in sorted((ROOT / component).rglob("*.py"))
    }

    readers = {name for name, lines in found.items() if lines}
    assert readers <= set(SHOWN)
    assert all(len(found[name]) == 1 for name in readers)


@pytest.mark.parametrize("step_seconds", [3600.0, -3600.0])
async def test_an_hour_forth_or_back_costs_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_seconds: float
) -> None:
    real = time.time
    with running_stub(StubWorker(uid="w0", event_seconds=0.05, events=10)) as stub:
        async with running_router([stub], tmp_path) as router:
            before = [await router.ask("hello", stream=True) for _ in range(3)]
            monkeypatch.setattr(time, "time", lambda: real() + step_seconds)
            after = [await router.ask("hello", stream=True) for _ in range(10)]

    assert [status for status, _, _ in before + after] == [200] * 13
    assert all(body.endswith(b"data: [DONE]\n\n") for _, _, body in before + after)
    assert router.router.workers.breakers.status("w0", "w0").ejections == 0
