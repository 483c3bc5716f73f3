"""The event stream of a worker process, over HTTP: its hello, its versions, its reports, its end."""

import asyncio
import itertools
import secrets
import signal
import threading
import time

import httpx
import pytest

from warmfleet_contracts.cache.kv_events import Frame, Hello, MessageReader, PlainAnswer, hello_proof
from warmfleet_testing.cache.event_follower import Follower
from warmfleet_testing.engine.worker_process import TINY_NAME, WorkerProcess, running_worker


def test_a_routers_set_after_real_requests_is_the_workers_own(shared_worker):
    nonce = secrets.token_bytes(16)
    follower, hello = Follower(), []
    done = threading.Event()

    def read() -> None:
        with (
            shared_worker.client() as client,
            client.stream("GET", f"/internal/kv-events?nonce={nonce.hex()}") as response,
        ):
            split = MessageReader()
            for data in response.iter_raw():
                if not hello:
                    length = 4 + int.from_bytes(data[:4], "little")
                    hello.extend(split.feed(data[:length]))
                    data = data[length:]
                follower.feed(data)
                if done.is_set() and follower.resident.seq == last_seq[0]:
                    return

    last_seq = [0]
    reader = threading.Thread(target=read)
    reader.start()
    with shared_worker.client() as client:
        for number in range(12):
            prompt = "shared head " * 10 + secrets.token_hex(20 + number)
            client.post("/v1/completions", json={"model": TINY_NAME, "prompt": prompt, "max_tokens": 20})
        client.delete("/internal/cache")
        client.post("/v1/completions", json={"model": TINY_NAME, "prompt": "after " * 20, "max_tokens": 4})
        asyncio.run(asyncio.sleep(0.1))
        cache = client.get("/internal/cache").json()
        last_seq[0] = cache["seq"]
        done.set()
        client.post("/v1/completions", json={"model": TINY_NAME, "prompt": "hi", "max_tokens": 9})
    reader.join(15)

    assert not reader.is_alive()
    assert isinstance(hello[0], Hello)
    assert (hello[0].uid, hello[0].epoch, hello[0].proof) == ("shared", cache["epoch"], b"")
    assert hello[0].identity.hex() == cache["identity"]
    assert len(follower.resident) == cache["resident_blocks"] > 0
    assert follower.resident.digest.xor.hex() == cache["resident_xor"]
    assert any(frame.cleared for frame in follower.frames)


def first_message(worker: WorkerProcess, path: str, headers: dict[str, str]) -> Hello | Frame:
    """Of a stream that is opened once there is a place: one that was closed is released a moment later."""
    deadline = time.monotonic() + 10
    with worker.client() as client:
        while True:
            with client.stream("GET", path, headers=headers) as response:
                if response.status_code != 429:
                    reader = MessageReader()
                    for data in response.raise_for_status().iter_raw():
                        for message in reader.feed(data):
                            return message
                    raise AssertionError("the stream ended before its first message")
            assert time.monotonic() < deadline, "no place became free"
            time.sleep(0.02)


def test_a_plain_answer_is_reported_while_it_is_generated_and_in_its_headers(shared_worker):
    headers = {"x-warmfleet-router": "router-a", "x-warmfleet-dispatch": "17"}
    body = {"model": TINY_NAME, "prompt": "hello " * 9, "max_tokens": 300, "ignore_eos": True, "n": 2}
    answers: list[httpx.Response] = []

    def ask() -> None:
        with shared_worker.client() as client:
            answers.append(client.post("/v1/completions", json=body, headers=headers))

    asking = threading.Thread(target=ask)
    reports: list[PlainAnswer] = []
    path, versions = "/internal/kv-events", {"x-warmfleet-versions": "2"}
    with shared_worker.client() as client, client.stream("GET", path, headers=versions) as response:
        reader = MessageReader()
        for data in response.iter_raw():
            loads = [frame.load for frame in reader.feed(data) if isinstance(frame, Frame)]
            if loads and not asking.ident:
                asking.start()
            reports += [answer for load in loads for answer in load.plain_answers.get("router-a", ())]
            if reports and not loads[-1].plain_answers:
                break
    asking.join(30)

    tokens = [report.generated_tokens for report in reports]
    (times,) = {(report.admitted_after_seconds, report.first_token_after_seconds) for report in reports}
    found = [answers[0].headers[f"x-warmfleet-{name}-after-seconds"] for name in ("admitted", "first-token")]
    assert {report.dispatch for report in reports} == {17}
    assert tokens == sorted(tokens)
    assert 0 < tokens[0] < tokens[-1] <= 600
    assert [f"{seconds:.6f}" for seconds in times] == found
    assert 0 < times[0] <= times[1]


def test_a_worker_reports_that_it_drains_before_its_stream_ends(tiny_served_path):
    with running_worker(tiny_served_path, "--kv-cache-bytes", "1000000") as worker:
        loads = []
        with worker.client() as client, client.stream("GET", "/internal/kv-events") as response:
            reader = MessageReader()
            for data in response.iter_raw():
                frames = [message for message in reader.feed(data) if isinstance(message, Frame)]
                if frames and not loads:
                    worker.process.send_signal(signal.SIGTERM)
                loads += [frame.load for frame in frames]

        # Each may be sent twice: a heartbeat comes when it is due.
        states = [draining for draining, _ in itertools.groupby(load.draining for load in loads)]
        assert states == [False, True]
        assert worker.process.wait(15) == 0


@pytest.mark.parametrize("query", ["after=x", "after=-1", "nonce=zz", "nonce=" + "00" * 65])
def test_a_malformed_subscription_is_refused(client, query):
    assert client.get(f"/internal/kv-events?{query}").status_code == 400


@pytest.mark.parametrize("versions", ["", "1,", "one", "3,4"])
def test_a_subscription_without_a_common_version_is_refused(client, versions):
    refused = client.get("/internal/kv-events", headers={"x-warmfleet-versions": versions})

    assert refused.status_code == 400
    assert "version" in refused.json()["error"]["message"]


@pytest.mark.parametrize(("stated", "version"), [(None, 1), ("1", 1), ("1,2", 2), ("2,3", 2)])
def test_a_worker_writes_the_highest_version_that_its_subscriber_accepts(shared_worker, stated, version):
    headers = {} if stated is None else {"x-warmfleet-versions": stated}

    assert first_message(shared_worker, "/internal/kv-events", headers).v == version


def test_streams_opened_before_the_engine_is_ready_count_and_get_a_proven_hello(tiny_served_path):
    token, nonce = "secret-token", secrets.token_bytes(16)
    flags = ("--max-subscribers", "2", "--uid", "pod-7")
    with running_worker(tiny_served_path, *flags, token=token, wait=False) as worker:
        path = "/internal/kv-events"
        headers = {"x-warmfleet-nonce": nonce.hex(), "x-warmfleet-versions": "1,2"}
        with worker.client() as client, client.stream("GET", path), client.stream("GET", path):
            refused = client.get(path)
        hello = first_message(worker, path, headers)
        with worker.client() as client:
            cache = client.get("/internal/cache").json()

    assert refused.status_code == 429
    assert isinstance(hello, Hello)
    assert hello.proof == hello_proof(token.encode(), nonce=nonce, uid="pod-7", identity=hello.identity)
    assert hello.exact is cache["exact"]
