"""`warmfleet record`: a router's ring becomes a trace that shares what its prompts shared."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from warmfleet_cli.__main__ import app
from warmfleet_cli.errors import ExitCode
from warmfleet_cli.record import MOST_DECISIONS_BYTES
from warmfleet_simulator.traces.reader import read_trace
from warmfleet_simulator.traces.trace_file import TraceFile
from warmfleet_testing.cache.infinite_cache import infinite_hit_rate
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_router import stub_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stubs

SYSTEM = "".join(chr(ord("a") + number % 26) for number in range(700))
PROMPTS = [SYSTEM[:length] + f" {number}" for number, length in enumerate([700, 700, 15, 300, 700, 40, 700])]


async def record(router: RunningRouter, *arguments: str) -> Result:
    command = ["record", "--url", router.url, *arguments]
    return await asyncio.to_thread(CliRunner().invoke, app, command)


def lines(recorded: Result) -> str:
    """The trace, without what the router in this process logs meanwhile."""
    return "".join(line for line in recorded.stdout.splitlines(keepends=True) if line.startswith("{"))


async def ask_all(router: RunningRouter, stubs: list[StubWorker], prompts: list[str], **fields: Any) -> None:
    for prompt in prompts:
        status, _, _ = await router.ask(prompt, **fields)
        assert status == 200
        await router.until_settled(stubs)


async def test_a_recorded_ring_replays_arrivals_lengths_and_shared_prefixes(tmp_path: Path) -> None:
    with running_stubs(1) as stubs:
        async with running_router(stubs, tmp_path) as router:
            await ask_all(router, stubs, PROMPTS)
            await ask_all(router, stubs, PROMPTS[:2], stream=True)
            recorded = await record(router)
            _, listed = await router.get("/internal/decisions")
    path = tmp_path / "ring.jsonl"
    path.write_text(lines(recorded))

    with TraceFile(path) as file:
        requests = list(read_trace(file))

    assert recorded.exit_code == 0
    assert recorded.stderr == ""
    decisions: list[dict[str, Any]] = listed["decisions"][::-1]  # type: ignore[index]  # JSON
    assert [request.prompt_tokens for request in requests] == list(map(len, [*PROMPTS, *PROMPTS[:2]]))
    assert [request.output_tokens for request in requests] == [
        decision["output_tokens"] for decision in decisions
    ]
    assert {request.output_tokens for request in requests[: len(PROMPTS)]} == {stubs[0].events}
    times = [decision["decided_at"] for decision in decisions]
    assert [request.arrival_seconds for request in requests] == pytest.approx(
        [at - times[0] for at in times], abs=0.001
    )
    cached = sum(decision["actual_cached_tokens"] for decision in decisions)
    assert infinite_hit_rate(requests, 16) == pytest.approx(
        cached / sum(decision["prompt_tokens"] for decision in decisions), rel=1 / 32
    )
    assert cached > 1000
    assert "abc" not in lines(recorded)


async def test_caches_that_are_not_shared_share_no_prefix_in_the_record(tmp_path: Path) -> None:
    with running_stubs(1) as stubs:
        async with running_router(stubs, tmp_path) as router:
            await ask_all(router, stubs, [SYSTEM])
            await ask_all(router, stubs, [SYSTEM], cache_salt="other")
            recorded = await record(router)
    path = tmp_path / "ring.jsonl"
    path.write_text(lines(recorded))

    with TraceFile(path) as file:
        first, second = read_trace(file)

    assert len(first.prompt) == len(second.prompt) == 44
    assert not set(first.prompt) & set(second.prompt)


async def test_requests_without_an_answer_are_left_out(tmp_path: Path) -> None:
    with running_stubs(1) as stubs:
        async with running_router(stubs, tmp_path) as router:
            await ask_all(router, stubs, ["hello"])
            stubs[0].faults.hold_headers = True
            stubs[0].arrived.clear()
            asking = asyncio.create_task(router.ask("wait"))
            await router.until(stubs[0].arrived.is_set)
            recorded = await record(router)
            newest = await record(router, "--limit", "1")
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    assert len(lines(recorded).splitlines()) == 1
    assert recorded.stderr == "1 of 2 requests are left out: they run, or got no answer\n"
    assert lines(newest) == ""


def test_a_router_that_answers_without_end_is_refused_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmfleet_cli.record.MOST_DECISIONS_BYTES", 1000)
    with stub_router() as router:
        router.endpoints = [{"padding": "x" * 1000}]
        result = CliRunner().invoke(app, ["record", "--url", f"http://127.0.0.1:{router.port}"])

    assert result.exit_code == ExitCode.REFUSED
    assert "/internal/decisions?limit=4096 answers more than 1,000 bytes" in result.stderr


def test_a_full_ring_of_a_router_is_within_the_bound() -> None:
    assert MOST_DECISIONS_BYTES >= 2 * 4096 * 3 * 1024


def test_a_recorded_prefix_drives_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    decision = {
        "decided_at": 1.0,
        "prompt_tokens": 2,
        "output_tokens": 3,
        "total_ms": 4.0,
        "prefix": "\x9b2J",
    }
    with stub_router() as router:
        body = msgspec.json.encode({"decisions": [decision]})
        monkeypatch.setattr(router, "answer", lambda _path, _key: (200, body))
        result = CliRunner().invoke(app, ["record", "--url", f"http://127.0.0.1:{router.port}"])

    assert json.loads(result.stdout)["prefix"] == "\x9b2J"
    assert "\x9b" not in result.stdout


async def test_a_router_that_does_not_answer_is_named() -> None:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["record", "--url", "http://127.0.0.1:1"])

    assert result.exit_code == ExitCode.NOT_RUNNING
    assert "http://127.0.0.1:1 does not answer" in result.stderr
