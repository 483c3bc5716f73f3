"""What router and worker log: ids on both sides, no text of requests, and no new series."""

import contextlib
import json
import secrets
import time
from collections.abc import Iterator

import httpx
import pytest

from warmfleet_contracts.keys import encode_key_file
from warmfleet_testing.engine.worker_process import (
    TINY_NAME,
    WorkerProcess,
    running_worker,
    tiny_served_model,
)
from warmfleet_testing.processes.plain_http import NO_TLS
from warmfleet_testing.router.planted_keys import PlantedKeys, bearer
from warmfleet_testing.router.router_process import RouterProcess, router_process

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORDS = "quixotic-zephyr-" + secrets.token_hex(8)
"""Planted in every field that a client sends."""
LETTER = "Q"
TOKEN = "worker-token-" + secrets.token_hex(8)
KEYS = PlantedKeys()
KEY = KEYS.add("acme", scopes=("inference", "metrics", "admin"))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    model = tiny_served_model(tmp_path_factory.mktemp("model"))
    with running_worker(model, "--kv-cache-bytes", "4000000", "--uid", "w", token=TOKEN) as worker:
        yield worker


@pytest.fixture(scope="module")
def router(worker: WorkerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    home = tmp_path_factory.mktemp("home")
    (home / "keys.json").write_bytes(encode_key_file(KEYS.file))
    with router_process({"w": worker}, home, "--keys-file", str(home / "keys.json")) as router:
        yield router


def wait_for_ids(server: RouterProcess | WorkerProcess, ids: set[str]) -> None:
    """Until each of `ids` has its line, which comes after the answer."""
    for _ in range(1000):
        seen = {line.get("request_id") for line in server.log_lines() if line["event"] == "request finished"}
        if ids <= seen:
            return
        time.sleep(0.02)
    raise AssertionError(ids - seen)


def log_text(server: RouterProcess | WorkerProcess) -> str:
    server.errors.seek(0)
    return server.errors.read()


def test_both_logs_have_the_request_and_neither_has_its_text(
    router: RouterProcess, worker: WorkerProcess
) -> None:
    letter = httpx.post(
        f"{worker.url}/tokenize",
        json={"prompt": LETTER},
        headers={"authorization": f"Bearer {TOKEN}"},
        verify=NO_TLS,
    ).json()["tokens"][0]
    fields = {"model": TINY_NAME, "max_tokens": 24, "logit_bias": {str(letter): 100}, "ignore_eos": True}
    fields |= {"user": WORDS, "cache_salt": WORDS, "stop": [WORDS], "metadata": {"note": WORDS}}
    fields |= {"temperature": 0, "unknown_field": WORDS}
    chat = {
        **fields,
        "messages": [{"role": "user", "content": WORDS}, {"role": "assistant", "content": WORDS}],
    }
    text = {**fields, "prompt": [WORDS, WORDS * 2], "echo": True, "logprobs": 2}
    answered: set[str] = set()
    refused: set[str] = set()

    with router.client() as client:
        client.headers.update(bearer(KEY))
        # When: it is answered, plain and streamed
        for path, body in ((CHAT, chat), (TEXT, text)):
            for stream in (False, True):
                response = client.post(path, json={**body, "stream": stream})
                assert LETTER in response.text, response.text
                answered.add(response.headers["x-request-id"])
        # And refused, in every way
        wrong: list[tuple[str, object]] = [
            (CHAT, {**chat, "model": WORDS}),
            (CHAT, {**chat, "tools": [{"function": {"name": WORDS}}]}),
            (CHAT, {**chat, "temperature": WORDS}),
            (CHAT, {**chat, "messages": [{"role": WORDS, "content": WORDS}]}),
            (TEXT, {**text, "prompt": WORDS * 1000}),
            (TEXT, {**text, "prompt": {"text": WORDS}}),
            ("/tokenize", {"model": WORDS, "prompt": WORDS}),
            ("/v1/responses", {"input": WORDS}),
        ]
        for path, body in wrong:
            response = client.post(path, json=body)
            assert response.status_code in {400, 404}, response.text
            refused.add(response.headers["x-request-id"])
        for content in (WORDS.encode(), f'{{"{WORDS}": '.encode(), f'["{WORDS}"]'.encode()):
            refused.add(client.post(CHAT, content=content).headers["x-request-id"])
        response = client.get(f"/v1/models?{WORDS}={WORDS}", headers={"cookie": WORDS})
        refused.add(response.headers["x-request-id"])
        for authorization in (f"Bearer {WORDS}", f"Basic {WORDS}", f"Bearer {KEY.text} {WORDS}"):
            response = client.post(CHAT, json=chat, headers={"authorization": authorization})
            assert response.status_code == 401
            refused.add(response.headers["x-request-id"])
        # And left in the middle
        with client.stream("POST", CHAT, json={**chat, "max_tokens": 400, "stream": True}) as response:
            answered.add(response.headers["x-request-id"])
            next(response.iter_raw())

    # Then
    wait_for_ids(router, answered | refused)
    wait_for_ids(worker, answered)
    for server in (router, worker):
        log = log_text(server)
        for secret in (WORDS, KEY.text, TOKEN, "5a" * 32, LETTER * 8):
            assert secret not in log
        assert all(line["level"] == "info" for line in server.log_lines()), log


def series(client: httpx.Client) -> set[str]:
    """Names and labels, of all that `/metrics` shows."""
    lines = client.get("/metrics").raise_for_status().text.splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("side", ["router", "worker"])
def test_no_request_makes_a_series(router: RouterProcess, worker: WorkerProcess, side: str) -> None:
    server = router if side == "router" else worker

    def ask_everything(client: httpx.Client, name: str) -> None:
        # The one token may be the end token: another reason to finish, with a series of its own.
        body = {"model": TINY_NAME, "prompt": "x", "max_tokens": 1, "ignore_eos": True}
        client.post(TEXT, json=body, headers={"user-agent": name, "x-request-id": name})
        client.post(TEXT, json={**body, "model": name})
        client.post(TEXT, json={**body, name: 1, "user": name, "cache_salt": name})
        client.post(TEXT, json={**body, "n": name})
        client.get(f"/{name}")
        client.get(f"/v1/models/{name}")
        client.request(name.upper()[:3] + "LOCK", TEXT)
        client.request("PUT", TEXT)
        client.get("/v1/models", headers={"authorization": f"Bearer {name}"})

    with server.client() as client:
        client.headers.update(bearer(KEY) if side == "router" else bearer(TOKEN))
        ask_everything(client, "first")
        before = series(client)
        for _ in range(50):
            with contextlib.suppress(httpx.RemoteProtocolError):
                ask_everything(client, "r" + secrets.token_hex(6))

        assert series(client) == before
        assert len(json.dumps(sorted(before))) < 200_000
