"""A client that does not read pauses only its own request, and loses it in the end."""

import json
import secrets
import socket
import time

import httpx

from warmfleet_testing.engine.worker_process import TINY_NAME, running_worker
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.router.watched_fleet import wait_until

# In float64 no two tokens are so close that the other shapes of other batches change which one is chosen.
KV = ("--kv-cache-bytes", "30000000", "--dtype", "Float64")
ANSWERS = 14


def slow_body() -> dict[str, object]:
    """Answers whose events are so many and so large that no socket buffer holds them."""
    prompts = [secrets.token_hex(8) for _ in range(ANSWERS)]
    body = {"model": TINY_NAME, "prompt": prompts, "max_tokens": 900, "temperature": 0}
    return {**body, "ignore_eos": True, "logprobs": 20}


def read_on(connection: socket.socket) -> bytes:
    """All that is left of an answer."""
    connection.settimeout(60)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
    with connection:
        return b"".join(iter(lambda: connection.recv(1024 * 1024), b""))


def stalled_connection(worker, body) -> socket.socket:
    """A stream that was asked for and is not read."""
    content = json.dumps({**body, "stream": True}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    connection.connect(("127.0.0.1", worker.port))
    head = f"POST /v1/completions HTTP/1.0\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def paused_sequences(worker) -> float:
    lines = httpx.get(f"{worker.url}/metrics", timeout=30, verify=NO_TLS).text.splitlines()
    (line,) = [line for line in lines if line.startswith("warmfleet_worker_paused_sequences{")]
    return float(line.split()[-1])


def wait_until_paused(worker) -> None:
    """Until all have been paused for a while: until the sockets' buffers are full, they go on again."""
    deadline = time.monotonic() + 120
    paused_polls = 0
    while paused_polls < 10:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        paused_polls = paused_polls + 1 if paused_sequences(worker) == ANSWERS else 0


def events_of(stream: bytes) -> list[str]:
    """The data of each."""
    lines = stream.decode().splitlines()
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def texts_of(stream: bytes) -> dict[int, str]:
    texts = dict.fromkeys(range(ANSWERS), "")
    *events, last = events_of(stream)
    assert last == "[DONE]"
    for event in events:
        (choice,) = json.loads(event)["choices"]
        texts[choice["index"]] += choice["text"]
    return texts


def test_a_paused_answer_holds_nothing_and_goes_on_where_it_was(tiny_served_path):
    body = slow_body()
    with running_worker(tiny_served_path, *KV) as worker, worker.client() as client:
        connection = stalled_connection(worker, body)
        wait_until_paused(worker)

        assert worker.cache()["pinned_blocks"] == 0
        other = client.post("/v1/completions", json={**body, "prompt": "hello", "max_tokens": 5})
        assert other.status_code == 200

        stream = read_on(connection)
        plain = client.post("/v1/completions", json=body, timeout=120).json()

    assert texts_of(stream) == {choice["index"]: choice["text"] for choice in plain["choices"]}


def test_a_reader_that_stands_still_loses_its_request(tiny_served_path):
    with running_worker(tiny_served_path, *KV, "--write-seconds", "0.3") as worker:
        with stalled_connection(worker, slow_body()), worker.client() as client:
            answer = client.post("/v1/completions", json={"model": TINY_NAME, "prompt": "a", "max_tokens": 5})
            line = worker.wait_for_log("request finished", 60, finish_reasons=["abort"] * ANSWERS)

        assert answer.status_code == 200
        assert line["status"] == 200
        assert worker.wait_until_idle()["pinned_blocks"] == 0
        # The log line is written before the engine reports the state.
        wait_until(lambda: paused_sequences(worker) == 0, lambda: paused_sequences(worker))


def test_a_reader_whose_engine_has_no_pause_reads_in_the_end_why_its_request_is_lost(tiny_served_path):
    impatient = "warmfleet_testing.processes.impatient_worker"
    with running_worker(tiny_served_path, *KV, module=impatient) as worker:
        connection = stalled_connection(worker, slow_body())
        wait_until(lambda: worker.cache()["pinned_blocks"], worker.cache)
        worker.wait_until_idle()

        stream = read_on(connection)

        # As with an engine that pauses, the request counts as given up by its client.
        worker.wait_for_log("request finished", 60, finish_reasons=["abort"] * ANSWERS)
    error = json.loads(events_of(stream)[-1])["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "slow_reader")
