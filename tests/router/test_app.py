"""The router as a whole over real HTTP: decisions, predictions, probes, errors in OpenAI's shape."""

# ruff: noqa: ASYNC110 - what is waited for happens in another thread

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from warmfleet_router.settings import parse_settings
from warmfleet_runtime.http.app import SERVED_PATHS
from warmfleet_testing.router.router_fixture import RunningRouter, running_router
from warmfleet_testing.router.stub_worker import StubWorker, running_stub

PREFIX = "".join(chr(ord("a") + number % 26) for number in range(640))


@pytest.fixture
def stubs() -> Iterator[list[StubWorker]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(running_stub(StubWorker(uid=f"w{n}", prefill_tokens_per_second=20_000)))
            for n in range(3)
        ]


@pytest.fixture
async def router(stubs: list[StubWorker], tmp_path: Path) -> AsyncGenerator[RunningRouter, None]:
    async with running_router(stubs, tmp_path) as running:
        yield running


async def test_a_second_question_goes_where_its_prefix_is(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    _, first, _ = await router.ask(PREFIX + " one")
    await router.until_settled(stubs)

    _, second, _ = await router.ask(PREFIX + " two")

    _, leader = await router.get(f"/debug/decisions/{first['x-request-id']}")
    _, follower = await router.get(f"/debug/decisions/{second['x-request-id']}")
    assert follower["uid"] == leader["uid"]
    assert follower["predicted_cached_tokens"] == follower["actual_cached_tokens"] == 640
    assert follower["last_block_matches"] is True
    assert follower["mode"] == "precise"
    assert len(follower["candidates"]) == 3  # type: ignore[arg-type]  # JSON


async def test_on_a_quiet_fleet_every_prediction_is_exact(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    # given: lengths at block edges, two tenants, chat and completion
    for number, length in enumerate([15, 16, 17, 31, 32, 33, 48, 160, 161, 15, 16, 17, 33, 160, 161]):
        await router.ask(PREFIX[:length], cache_salt="other" if number % 2 else None)
        await router.until_settled(stubs)
        chat = {"model": "stub", "messages": [{"role": "user", "content": PREFIX[: length * 2]}]}
        async with router.http.post(router.url + "/v1/chat/completions", json=chat) as response:
            assert response.status == 200
        await router.until_settled(stubs)

    _, listed = await router.get("/internal/decisions?limit=100")

    decisions = listed["decisions"]
    assert len(decisions) == 30  # type: ignore[arg-type]  # JSON
    for decision in decisions:  # type: ignore[attr-defined]  # JSON
        assert decision["predicted_cached_tokens"] == decision["actual_cached_tokens"]
        assert decision["predicted_prompt_tokens"] == decision["actual_prompt_tokens"]
        assert decision["last_block_matches"] is not False
        assert decision["difference"] == "none"
    assert any(decision["actual_cached_tokens"] for decision in decisions)  # type: ignore[attr-defined]  # JSON


async def test_a_prediction_is_stored_before_its_dispatch(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    # given: workers that have the request and send nothing
    for stub in stubs:
        stub.faults.hold_headers = True
    asking = asyncio.create_task(router.ask(PREFIX, headers={"x-request-id": "mine"}))
    async with asyncio.timeout(5):
        while not any(stub.arrived.is_set() for stub in stubs):
            await asyncio.sleep(0.005)

    status, decision = await router.get("/debug/decisions/mine")

    assert status == 200
    assert decision["outcome"] == "in flight"
    assert decision["predicted_cached_tokens"] == 0
    assert decision["predicted_prompt_tokens"] == 640
    assert decision["actual_cached_tokens"] is None
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_sixteen_concurrent_siblings_of_a_new_prefix_land_on_one_worker(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    # given: a prefix that takes 160 ms and tails that take nothing
    prefix = PREFIX * 5
    answers = await asyncio.gather(*(router.ask(prefix + chr(65 + n), stream=True) for n in range(16)))

    assert {status for status, _, _ in answers} == {200}
    leader = [stub for stub in stubs if stub.computed_tokens]
    assert len(leader) == 1
    assert sorted(leader[0].computed_tokens)[:-1] == [1] * 15


async def test_the_ten_newest_decisions_come_first(router: RunningRouter) -> None:
    for number in range(12):
        await router.ask("hello", headers={"x-request-id": f"r{number}"})

    _, listed = await router.get("/internal/decisions?limit=10")
    status, refused = await router.get("/internal/decisions?limit=many")

    assert [entry["request_id"] for entry in listed["decisions"]] == [f"r{n}" for n in range(11, 1, -1)]  # type: ignore[attr-defined]  # JSON
    assert (status, refused["error"]["param"]) == (400, "limit")  # type: ignore[index]  # JSON


async def test_the_fleet_shows_every_worker_and_the_sums(router: RunningRouter) -> None:
    _, fleet = await router.get("/internal/fleet")

    assert fleet["ready_endpoints"] == 3
    assert fleet["totals"]["total_blocks"] == 3 * 4096  # type: ignore[index]  # JSON
    endpoints = fleet["endpoints"]
    assert [entry["uid"] for entry in endpoints] == ["w0", "w1", "w2"]  # type: ignore[attr-defined]  # JSON
    assert all(entry["ready"] and entry["precise"] for entry in endpoints)  # type: ignore[attr-defined]  # JSON


async def test_models_are_the_union_of_what_workers_serve(tmp_path: Path) -> None:
    with ExitStack() as stack:
        stubs = [
            stack.enter_context(running_stub(StubWorker(uid=name, served_name=name)))
            for name in ("org/model-a", "model-b")
        ]
        async with running_router(stubs, tmp_path) as router:
            _, models = await router.get("/v1/models")
            found, model = await router.get("/v1/models/org/model-a")
            missing, error = await router.get("/v1/models/model-c")

    assert [entry["id"] for entry in models["data"]] == ["model-b", "org/model-a"]  # type: ignore[attr-defined]  # JSON
    assert (found, model["id"], model["root"]) == (200, "org/model-a", "org/model-a")
    assert (missing, error["error"]["code"]) == (404, "model_not_found")  # type: ignore[index]  # JSON


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/completions", {"model": "unknown", "prompt": "x"}, 404, "model_not_found"),
        ("/v1/completions", {"prompt": "x"}, 400, None),
        ("/v1/completions", {"model": "stub", "prompt": "x", "suffix": "y"}, 400, "unsupported_parameter"),
        ("/v1/chat/completions", {"model": "stub", "messages": []}, 400, None),
        ("/v1/embeddings", {"model": "stub"}, 404, "not_found"),
        ("/v1/models", {}, 405, "method_not_allowed"),
    ],
    ids=["model", "no model", "unsupported", "no messages", "route", "method"],
)
async def test_refusals_have_openais_shape_and_reach_no_worker(
    router: RunningRouter,
    stubs: list[StubWorker],
    path: str,
    body: dict[str, object],
    status: int,
    code: str | None,
) -> None:
    async with router.http.post(router.url + path, json=body) as response:
        answer = await response.json()

    assert response.status == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["code"] == code
    assert response.headers["x-request-id"]
    assert response.headers["x-warmfleet-decision"]
    assert not any(stub.requests for stub in stubs)


async def test_what_is_not_served_is_answered_with_what_is(router: RunningRouter) -> None:
    _, answer = await router.get("/v1/responses")

    assert all(path in answer["error"]["message"] for path in SERVED_PATHS)  # type: ignore[index]  # JSON


async def test_a_body_over_the_limit_is_refused_before_it_is_read(router: RunningRouter) -> None:
    host, port = router.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {33 * 1024 * 1024}\r\n\r\n"
    writer.write(head.encode())

    answer = await asyncio.wait_for(reader.readline(), 5)

    assert b"413" in answer
    writer.close()


async def test_a_prompt_of_megabytes_passes(router: RunningRouter, stubs: list[StubWorker]) -> None:
    for stub in stubs:
        stub.prefill_tokens_per_second = 1e9

    status, headers, _ = await router.ask([7] * 700_000)
    _, decision = await router.get(f"/debug/decisions/{headers['x-request-id']}")

    assert status == 200
    assert decision["predicted_prompt_tokens"] == decision["actual_prompt_tokens"] == 700_000
    assert decision["last_block_matches"] is True


async def test_tokenize_is_answered_by_a_worker(router: RunningRouter) -> None:
    body = {"model": "stub", "prompt": "hello"}
    async with router.http.post(router.url + "/tokenize", json=body) as response:
        answer = await response.json()

    assert response.status == 200
    assert answer["count"] == len(answer["tokens"]) == 1


async def test_readiness_waits_for_a_worker_whose_cache_is_known(tmp_path: Path) -> None:
    async with running_router([], tmp_path) as router:
        alive, _ = await router.get("/livez")
        ready, answer = await router.get("/readyz")
        status, headers, _ = await router.ask("hello")

    assert (alive, ready) == (200, 503)
    assert answer["status"] == "no worker is ready"
    assert status == 503
    assert headers["retry-after"]


async def test_a_router_is_ready_with_its_first_worker(router: RunningRouter) -> None:
    for path in ("/readyz", "/health", "/livez", "/version"):
        status, _ = await router.get(path)
        assert status == 200


async def test_a_restarted_router_is_precise_at_once_and_needs_no_worker_for_its_tokenizer(
    stubs: list[StubWorker], tmp_path: Path
) -> None:
    async with running_router(stubs, tmp_path) as router:
        await router.ask(PREFIX)
        await router.until_settled(stubs)
    for stub in stubs:
        stub.assets = msgspec.structs.replace(stub.assets, tokenizer_json="{}")  # would be refused

    async with running_router(stubs, tmp_path) as router:
        _, headers, _ = await router.ask(PREFIX)
        _, decision = await router.get(f"/debug/decisions/{headers['x-request-id']}")

    assert decision["mode"] == "precise"
    assert decision["predicted_cached_tokens"] == decision["actual_cached_tokens"] == 624


async def test_a_tokenizer_that_does_not_match_its_digest_is_not_used(tmp_path: Path) -> None:
    stub = StubWorker(uid="w0")
    stub.assets = msgspec.structs.replace(stub.assets, chat_template="{{ 'other' }}")
    with running_stub(stub):
        async with running_router([stub], tmp_path, wait_ready=False) as router:
            async with asyncio.timeout(10):
                while (await router.get("/readyz"))[0] != 200:
                    await asyncio.sleep(0.01)
            status, headers, _ = await router.ask(PREFIX)
            _, decision = await router.get(f"/debug/decisions/{headers['x-request-id']}")

    assert status == 200
    assert decision["mode"] == "load-only"
    assert not (tmp_path / "router").exists()


async def test_metrics_count_what_was_predicted_and_found(
    router: RunningRouter, stubs: list[StubWorker]
) -> None:
    for _ in range(2):
        await router.ask(PREFIX)
        await router.until_settled(stubs)

    async with router.http.get(router.url + "/metrics") as response:
        text = await response.text()

    assert 'warmfleet_router_requests_total{model_name="stub",outcome="completed"} 2.0' in text
    assert 'warmfleet_router_predicted_cached_tokens_total{model_name="stub"} 624.0' in text
    assert 'warmfleet_router_cached_tokens_total{model_name="stub"} 624.0' in text
    assert 'warmfleet_router_endpoints{state="precise"} 3.0' in text
    assert "warmfleet_router_requests_in_flight 0.0" in text


async def test_failures_count_from_zero_so_that_an_increase_sees_the_first(router: RunningRouter) -> None:
    async with router.http.get(router.url + "/metrics") as response:
        text = await response.text()

    assert 'warmfleet_router_broken_streams_total{model_name="stub"} 0.0' in text
    assert 'warmfleet_router_failed_attempts_total{model_name="stub",reason="connection"} 0.0' in text
    assert 'warmfleet_router_key_file_loads_total{result="refused"} 0.0' in text
    assert "warmfleet_router_hash_mismatches_total 0.0" in text


async def test_a_router_process_prints_its_address_and_drains_on_sigterm(
    stubs: list[StubWorker], tmp_path: Path
) -> None:
    # given: a router as users start it, with a stream in flight
    for stub in stubs:
        stub.event_seconds, stub.events = 0.05, 20
    async with _router_process(stubs, tmp_path) as (process, url):
        body = await _stream_with_sigterm(url, process)

        # then: the stream ends as if nothing had happened, and so does the process
        assert body.endswith(b"data: [DONE]\n\n")
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def test_a_router_that_lingers_serves_what_still_comes_and_closes_each_connection_after_it(
    stubs: list[StubWorker], tmp_path: Path
) -> None:
    import aiohttp  # noqa: PLC0415 - only here

    question = {"model": "stub", "prompt": "hello"}
    async with _router_process(stubs, tmp_path, "--linger-seconds", "5") as (process, url):
        one = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(url, connector=one) as http:

            async def ask() -> tuple[int, str | None]:
                async with http.post("/v1/completions", json=question) as response:
                    await response.read()
                    return response.status, response.headers.get("connection")

            before = await ask()
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(4):
                while (kept := await ask()) == before:
                    pass
            anew = await ask()
            async with http.get("/readyz") as response:
                ready = response.status
        assert await asyncio.wait_for(process.wait(), 30) == 0

    assert before == (200, None)
    assert (kept, anew, ready) == ((200, "close"), (200, "close"), 503)


@asynccontextmanager
async def _router_process(
    stubs: list[StubWorker], home: Path, *flags: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str], None]:
    """A router as users start it, ready; killed at the end if it still runs."""
    arguments = ["-m", "warmfleet_router", "--port", "0", "--router-id", "r", *flags]
    for stub in stubs:
        arguments += ["--endpoint", f"{stub.uid}={stub.url}"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "WARMFLEET_HOME": str(home), "WARMFLEET_SALT_KEY": "ab" * 32},
    )
    try:
        assert process.stdout is not None
        line = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
        assert line["event"] == "listening"
        url = f"http://{line['host']}:{line['port']}"
        await _until_ready(url)
        yield process, url
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _until_ready(url: str) -> None:
    import aiohttp  # noqa: PLC0415 - only here

    async with aiohttp.ClientSession() as http, asyncio.timeout(60):
        while True:
            try:
                async with http.get(url + "/readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.02)


async def _stream_with_sigterm(url: str, process: asyncio.subprocess.Process) -> bytes:
    import aiohttp  # noqa: PLC0415 - only here

    body = {"model": "stub", "prompt": "hello", "stream": True}
    received = b""
    async with aiohttp.ClientSession() as http, http.post(url + "/v1/completions", json=body) as response:
        async for chunk in response.content.iter_any():
            if not received:
                process.send_signal(signal.SIGTERM)
            received += chunk
    return received


def test_anonymous_clients_beyond_loopback_need_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(["--host", "0.0.0.0"], {})

    assert "--allow-anonymous" in capsys.readouterr().err
    assert parse_settings(["--host", "0.0.0.0", "--allow-anonymous"], {}).host == "0.0.0.0"


def test_a_salt_key_that_is_missing_is_drawn_and_a_bad_one_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse_settings([], {}).salt_key_is_own
    assert parse_settings([], {"WARMFLEET_SALT_KEY": "ab" * 32}).salt_key == bytes.fromhex("ab" * 32)
    with pytest.raises(SystemExit):
        parse_settings([], {"WARMFLEET_SALT_KEY": "secret!"})
    assert "secret!" not in capsys.readouterr().err
