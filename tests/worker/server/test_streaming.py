"""Streams: the same text as the plain answer, in OpenAI's order, and given up when the client leaves."""

import itertools
import json
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from warmfleet_testing.engine.worker_process import TINY_NAME, WorkerProcess, running_worker
from warmfleet_testing.processes.plain_http import NO_TLS

CHAT = "/v1/chat/completions"


def chat_body(**fields: object) -> dict[str, object]:
    return {
        "model": TINY_NAME,
        "messages": [{"role": "user", "content": secrets.token_hex(16)}],
        "max_tokens": 32,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }


def long_body(**fields: object) -> dict[str, object]:
    return chat_body(max_tokens=900, **fields)


def raw_request(worker: WorkerProcess, body: dict[str, object], path: str = CHAT) -> socket.socket:
    """A connection that has sent a request and read nothing."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-request-id: {secrets.token_hex(4)}\r\n"
    connection = socket.create_connection(("127.0.0.1", worker.port))
    connection.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def events_of(response: httpx.Response) -> list[str]:
    events = response.text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") for event in events)
    return [event.removeprefix("data: ") for event in events]


def test_a_stream_has_role_text_reason_usage_and_done_in_this_order(client):
    response = client.post(CHAT, json=chat_body(stream=True, stream_options={"include_usage": True}))

    *chunks, done = events_of(response)
    first, *middle, last, usage = map(json.loads, chunks)
    assert done == "[DONE]"
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    assert int(response.headers["x-warmfleet-cached-tokens"]) == 0
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in [*middle, last])
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in [first, *middle])
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 32
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert len({chunk["id"] for chunk in [first, *middle, last, usage]}) == 1


def test_without_include_usage_there_is_no_usage_chunk(client):
    *chunks, done = events_of(client.post(CHAT, json=chat_body(stream=True)))

    assert done == "[DONE]"
    assert all(json.loads(chunk)["choices"] for chunk in chunks)


@pytest.mark.parametrize("seed", range(8))
def test_streamed_and_plain_text_are_the_same(client, seed):
    body = chat_body(temperature=1.2, seed=seed, max_tokens=60, ignore_eos=False)

    plain = client.post(CHAT, json=body).json()["choices"][0]
    chunks = [json.loads(event) for event in events_of(client.post(CHAT, json={**body, "stream": True}))[:-1]]

    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == plain["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == plain["finish_reason"]


def test_a_stop_string_ends_the_text_before_it(client):
    body = {"model": TINY_NAME, "prompt": secrets.token_hex(16), "max_tokens": 60, "temperature": 0}
    body["ignore_eos"] = True
    whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    ascii_runs = ["".join(run) for plain, run in itertools.groupby(whole, str.isascii) if plain]
    stop = max(ascii_runs, key=len)[:3]

    plain = client.post("/v1/completions", json={**body, "stop": [stop, "never generated"]}).json()
    events = events_of(client.post("/v1/completions", json={**body, "stop": stop, "stream": True}))

    expected = whole[: whole.index(stop)]
    assert plain["choices"][0]["text"] == expected
    assert plain["choices"][0]["finish_reason"] == "stop"
    assert plain["usage"]["completion_tokens"] < 60
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == expected


def first_letter_that_is_a_token(tokens):
    """The first printable character that was generated as a token of its own; None if there is none."""
    return next(
        (
            token
            for position, token in enumerate(tokens)
            if len(token) == 1
            and "!" <= token <= "~"
            and not any(token in text for text in tokens[:position])
        ),
        None,
    )


def test_a_stop_token_ends_the_text_and_is_no_part_of_it(client):
    body = {"model": TINY_NAME, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    letter = None
    while letter is None:
        body["prompt"] = secrets.token_hex(16)
        choice = client.post("/v1/completions", json={**body, "logprobs": 1}).json()["choices"][0]
        letter = first_letter_that_is_a_token(choice["logprobs"]["tokens"])
    token_id = client.post("/tokenize", json={"prompt": letter}).json()["tokens"][0]

    answer = client.post("/v1/completions", json={**body, "stop_token_ids": [token_id]}).json()

    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["text"] == choice["text"][: choice["text"].index(letter)]


def test_streams_of_several_prompts_interleave_and_agree_with_the_plain_answer(client):
    body = {"model": TINY_NAME, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    body["prompt"] = [secrets.token_hex(8) for _ in range(3)]
    plain = client.post("/v1/completions", json=body).json()

    events = events_of(client.post("/v1/completions", json={**body, "stream": True}))

    texts = dict.fromkeys(range(3), "")
    for event in events[:-1]:
        choice = json.loads(event)["choices"][0]
        texts[choice["index"]] += choice["text"]
    assert list(texts.values()) == [choice["text"] for choice in plain["choices"]]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_streams_of_n_choices_agree_with_the_plain_answer(client, path):
    body = chat_body(n=3, seed=5, temperature=1.0)
    if path != CHAT:
        body["prompt"] = body.pop("messages")[0]["content"]
    plain = client.post(path, json=body).json()

    stream = client.post(path, json={**body, "stream": True, "stream_options": {"include_usage": True}})

    *chunks, usage = [json.loads(event) for event in events_of(stream)[:-1]]
    texts, reasons = dict.fromkeys(range(3), ""), {}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "") if path == CHAT else choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
    assert list(texts.values()) == [
        choice["message"]["content"] if path == CHAT else choice["text"] for choice in plain["choices"]
    ]
    assert reasons == dict.fromkeys(range(3), "length")
    # Usage differs only in what the cache held.
    del usage["usage"]["prompt_tokens_details"], plain["usage"]["prompt_tokens_details"]
    assert usage["usage"] == plain["usage"]


def test_every_event_arrives_by_itself_while_the_model_works(shared_worker):
    with (
        shared_worker.client() as client,
        client.stream("POST", CHAT, json=long_body(stream=True)) as response,
    ):
        arrivals = [time.monotonic() for line in response.iter_lines() if line]

    assert len(arrivals) > 100
    assert arrivals[len(arrivals) // 2] - arrivals[0] > 0.1 * (arrivals[-1] - arrivals[0])


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(shared_worker, stream):
    started_tokens = generated_tokens(shared_worker)
    connection = raw_request(shared_worker, long_body(stream=stream))
    while generated_tokens(shared_worker) == started_tokens:
        time.sleep(0.01)

    connection.close()

    cache = shared_worker.wait_until_idle()
    assert cache["pinned_blocks"] == 0
    assert generated_tokens(shared_worker) - started_tokens < 900


def test_a_client_that_leaves_before_its_first_token_frees_its_blocks(shared_worker):
    for _ in range(20):
        raw_request(shared_worker, long_body(stream=True)).close()

    assert shared_worker.wait_until_idle()["pinned_blocks"] == 0


@pytest.fixture(scope="module")
def narrow_worker(tiny_served_path: Path) -> Iterator[WorkerProcess]:
    """One seat to run, two sequences at once, and a ping at every turn."""
    flags = ("--max-running-sequences", "1", "--max-live-sequences", "2", "--ping-seconds", "0.05")
    with running_worker(tiny_served_path, *flags, "--kv-cache-bytes", "4000000") as worker:
        yield worker


def test_a_stream_that_waits_sends_pings(narrow_worker):
    holder = raw_request(narrow_worker, long_body(stream=True))
    assert holder.recv(1)

    with narrow_worker.client() as client:
        text = client.post(CHAT, json=chat_body(stream=True)).text
    holder.close()
    narrow_worker.wait_until_idle()

    pings, _, rest = text.partition("data: ")
    assert pings.startswith(": ping\n\n")
    assert set(pings.split("\n\n")) == {": ping", ""}
    assert rest.endswith("data: [DONE]\n\n")


def test_what_exceeds_the_bound_on_live_sequences_is_answered_429(narrow_worker):
    held = [raw_request(narrow_worker, long_body(stream=True)) for _ in range(2)]
    for connection in held:
        assert connection.recv(1)

    with narrow_worker.client() as client:
        refused = client.post(CHAT, json=chat_body())
        for connection in held:
            connection.close()
        narrow_worker.wait_until_idle()
        later = client.post(CHAT, json=chat_body())

    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "overloaded"
    assert later.status_code == 200


def generated_tokens(worker: WorkerProcess) -> float:
    lines = metric_lines(worker)
    return next(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total{"))


def metric_lines(worker: WorkerProcess) -> Iterator[str]:
    return iter(httpx.get(f"{worker.url}/metrics", timeout=30, verify=NO_TLS).text.splitlines())


def test_the_events_of_a_step_are_one_write(shared_worker):
    body = {
        "model": TINY_NAME,
        "prompt": "one",
        "n": 4,
        "max_tokens": 32,
        "seed": 7,
        "return_token_ids": True,
    }
    with raw_request(
        shared_worker, {**body, "stream": True, "ignore_eos": True}, "/v1/completions"
    ) as stream:
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += stream.recv(65_536)

    # Every chunk of HTTP begins with its size, and the choices begin at most a step apart.
    _, _, chunks = data.partition(b"\r\n\r\n")
    writes = [line for line in chunks.split(b"\r\n") if line and not line.startswith(b"data: ")]
    assert len(writes) <= 32 + 1 + 1, "and the end"
    assert chunks.count(b"data: ") > len(writes)
