"""The tables of docs/reference/http-api.md, row by row, against real routers and workers with each engine."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from warmfleet_contracts.openai.chat import chat_request
from warmfleet_contracts.openai.completion import completion_request
from warmfleet_contracts.openai.served_fields import UNSUPPORTED
from warmfleet_contracts.openapi.requests import traced
from warmfleet_runtime.http.app import SERVED_PATHS
from warmfleet_testing.engine.worker_process import WorkerProcess, running_worker, tiny_served_model
from warmfleet_testing.processes.tested_engines import EngineUnderTest
from warmfleet_testing.router.router_process import RouterProcess, router_process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/http-api.md").read_text()
TINY = "org/tiny"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
Ask = Callable[..., httpx.Response]


def rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading, without its head."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table]


ENDPOINTS = rows("Endpoints")
FIELDS = rows("Fields of chat and text completions")


@pytest.fixture(scope="module")
def worker(engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    model = tiny_served_model(tmp_path_factory.mktemp("model"), **engine.model_fields)
    flags = ("--served-name", TINY, "--kv-cache-bytes", "4000000", "--uid", "w", *engine.flags)
    with running_worker(model, *flags, start_seconds=engine.start_seconds) as worker:
        yield worker


@pytest.fixture(scope="module")
def router(worker: WorkerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RouterProcess]:
    with router_process({"w": worker}, tmp_path_factory.mktemp("home")) as router:
        yield router


@pytest.fixture(params=["router", "worker"])
def client(
    request: pytest.FixtureRequest, router: RouterProcess, worker: WorkerProcess
) -> Iterator[httpx.Client]:
    server = router if request.param == "router" else worker
    with server.client() as client:
        yield client


def body_of(path: str, **fields: object) -> dict[str, Any]:
    body: dict[str, Any] = {"model": TINY, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": "hello"}]
    else:
        body["prompt"] = "hello"
    return {**body, **fields}


def answer(client: httpx.Client, path: str, **fields: object) -> dict[str, Any]:
    body = {name: value for name, value in body_of(path, **fields).items() if value is not ...}
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    parsed: dict[str, Any] = response.json()
    return parsed


def text_of(choice: dict[str, Any]) -> str:
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert re.fullmatch("[A-Za-z0-9_-]{1,64}", response.headers["x-request-id"])
    return error


def test_the_tables_hold_what_is_served_and_what_decoders_take():
    chat = traced(chat_request, {"model": "m", "messages": [{"role": "user", "content": "x"}]})
    text = traced(completion_request, {"model": "m", "prompt": "x"})

    def cell(fields, name):
        cells = {"works": fields.types, "typed 400": fields.neutral, "no effect": fields.without_effect}
        return next((word for word, names in cells.items() if name in names), "ignored")

    names = {*chat.types, *chat.neutral, *chat.without_effect}
    names |= {*text.types, *text.neutral, *text.without_effect}
    assert {name: (first, second) for name, first, second in FIELDS} == {
        name: (cell(chat, name), cell(text, name)) for name in names
    }
    assert set(SERVED_PATHS) <= {path for path, _, state in ENDPOINTS if state == "works"}


def test_the_short_table_of_the_readme_agrees_with_the_long_ones():
    readme = (ROOT / "README.md").read_text().partition("| | endpoints | fields")[2].partition("\n\n")[0]
    cells = [line.strip("|").split("|") for line in readme.splitlines()[2:]]
    states = {path: {state} for path, _, state in ENDPOINTS}
    states |= {name: {chat, text} for name, chat, text in FIELDS}

    named = [
        (name, row[0].strip()) for row in cells for cell in row[1:] for name in re.findall("`(.+?)`", cell)
    ]
    assert {state for _, state in named} == {"works", "no effect", "typed 400", "404"}
    assert [(name, state) for name, state in named if state not in states[name]] == []


WORKING_BODIES = {
    CHAT: body_of(CHAT),
    TEXT: body_of(TEXT),
    "/tokenize": {"model": TINY, "prompt": "hello"},
    "/detokenize": {"model": TINY, "tokens": [100, 101]},
}
SIGNS = {
    CHAT: "choices",
    TEXT: "choices",
    "/v1/models": "data",
    "/v1/models/{id}": "id",
    "/tokenize": "tokens",
    "/detokenize": "prompt",
    "/version": "version",
    "/health": "status",
    "/livez": "status",
    "/readyz": "status",
    "/openapi.json": "paths",
}


@pytest.mark.parametrize(("path", "method", "state"), ENDPOINTS)
def test_an_endpoint_is_what_the_table_lists(client, path, method, state):
    response = client.request(method, path.replace("{id}", TINY), json=WORKING_BODIES.get(path))

    if state == "404":
        error = error_of(response)
        assert (response.status_code, error["code"]) == (404, "not_found")
        assert all(served in error["message"] for served in SERVED_PATHS)
        return
    assert (response.status_code, state) == (200, "works"), response.text
    assert re.fullmatch("[A-Za-z0-9_-]{1,64}", response.headers["x-request-id"])
    if path != "/metrics":
        assert SIGNS[path] in response.json()
    # Another method is answered with the right one; HEAD is GET without a body, OPTIONS needs a CORS setting.
    allowed = {"POST"} if method == "POST" else {"GET", "HEAD"}
    for other in ("DELETE", "PUT", "PATCH", "OPTIONS", "GET" if method == "POST" else "POST"):
        wrong = client.request(other, path.replace("{id}", TINY))
        assert wrong.status_code == 405
        assert set(wrong.headers["allow"].split(", ")) == allowed
        assert error_of(wrong)["code"] == "method_not_allowed"
    if method == "GET":
        head = client.head(path.replace("{id}", TINY))
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (path, name)
        for name, *cells in FIELDS
        for path, state in zip((CHAT, TEXT), cells, strict=True)
        if state == "typed 400"
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(client, path, field):
    neutral = UNSUPPORTED.get(field, (0,))

    error = error_of(response := client.post(path, json=body_of(path, **{field: "not served"})))
    assert (response.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", field)

    plain = answer(client, path)["choices"]
    for value in (None, *neutral):
        assert answer(client, path, **{field: value})["choices"] == plain


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_what_has_no_effect_has_none_and_what_is_unknown_is_counted(client, path):
    cells = {name: chat if path == CHAT else text for name, chat, text in FIELDS}
    plain = answer(client, path)["choices"]
    names = [name for name, state in cells.items() if state == "no effect"]

    def counted() -> float:
        lines = client.get("/metrics").text.splitlines()
        line = next(line for line in lines if re.match(r"\w+_ignored_request_fields_total\b", line))
        return float(line.rpartition(" ")[2])

    for value in ("anything", 7, [1], {"a": "b"}, True, None):
        fields = dict.fromkeys(names, value)
        assert answer(client, path, **fields)["choices"] == plain
    before = counted()
    assert answer(client, path, unknown_field=1, another_unknown_field={"x": [1]})["choices"] == plain
    assert counted() == before + 2


def effects(path: str) -> dict[str, Callable[[httpx.Client], bool]]:
    """For each field, a request or two whose answers show that it is heeded."""

    def ask(client: httpx.Client, **fields: object) -> dict[str, Any]:
        return answer(client, path, **fields)

    def text(client: httpx.Client, **fields: object) -> str:
        return text_of(ask(client, **fields)["choices"][0])

    def ids(client: httpx.Client, **fields: object) -> list[int]:
        found: list[int] = ask(client, return_token_ids=True, **fields)["choices"][0]["token_ids"]
        return found

    def differs(**fields: object) -> Callable[[httpx.Client], bool]:
        """Noise as in the plain request; only `fields` differ."""
        noise = {"temperature": 2, "seed": 11, "max_tokens": 24}
        return lambda client: ids(client, **noise) != ids(client, **{**noise, **fields})

    def penalises(**fields: object) -> Callable[[httpx.Client], bool]:
        """Of eight tokens some come again in 24."""
        bias = {str(token): 50 for token in range(70, 78)}
        few = {"temperature": 2, "seed": 11, "max_tokens": 24, "logit_bias": bias}
        return lambda client: ids(client, **few) != ids(client, **few, **fields)

    def is_refused(**fields: object) -> Callable[[httpx.Client], bool]:
        return lambda client: client.post(path, json=body_of(path, **fields)).status_code == 400

    def greedy_first(client: httpx.Client) -> int:
        return ids(client)[0]

    def stops(client: httpx.Client) -> bool:
        whole = text(client, max_tokens=24)
        cut = text(client, max_tokens=24, stop=[whole[5:7]])
        return cut == whole[: whole.index(whole[5:7])]

    def streams(client: httpx.Client) -> bool:
        response = client.post(path, json=body_of(path, stream=True))
        is_unbuffered = response.headers["x-accel-buffering"] == "no"
        return is_unbuffered and response.text.endswith("data: [DONE]\n\n")

    def counts_usage(client: httpx.Client) -> bool:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *_, last, done = client.post(path, json=body_of(path, **options)).text.strip().split("\n\n")
        chunk = json.loads(last.removeprefix("data: "))
        return done == "data: [DONE]" and chunk["choices"] == [] and "prompt_tokens_details" in chunk["usage"]

    def salted(client: httpx.Client) -> bool:
        body = {"cache_salt": "mine", **long_prompt(path)}
        cached = [
            ask(client, **{**body, "cache_salt": salt})["usage"]["prompt_tokens_details"]["cached_tokens"]
            for salt in ("mine", "mine", f"not mine {client.base_url}")
        ]
        return cached[1] > 0 and cached[2] == 0

    return {
        "best_of": lambda client: len(ask(client, n=2, best_of=2)["choices"]) == 2,
        "cache_salt": salted,
        "echo": lambda client: text(client, echo=True) == "hello" + text(client),
        "frequency_penalty": penalises(frequency_penalty=2),
        "ignore_eos": lambda client: (
            len(ids(client, max_tokens=24, logit_bias={"2": 100})) == 24
            and len(ids(client, max_tokens=24, logit_bias={"2": 100}, ignore_eos=False)) < 24
        ),
        "logit_bias": lambda client: ids(client, logit_bias={"77": 100}) == [77] * 8,
        "logprobs": lambda client: bool(
            ask(client, logprobs=True if path == CHAT else 1)["choices"][0]["logprobs"]
        ),
        "max_completion_tokens": lambda client: len(ids(client, max_completion_tokens=3)) == 3,
        "max_tokens": lambda client: len(ids(client, max_tokens=3)) == 3,
        "messages": lambda client: ids(client) != ids(client, **long_prompt(path)),
        "min_p": lambda client: (
            ids(client, temperature=2, seed=11, min_p=1, max_tokens=24) == ids(client, max_tokens=24)
        ),
        "min_tokens": lambda client: (
            len(ids(client, ignore_eos=False, logit_bias={"2": 100}, min_tokens=5, max_tokens=24)) >= 5
        ),
        "model": lambda client: client.post(path, json=body_of(path, model="other")).status_code == 404,
        "n": lambda client: len(ask(client, n=3)["choices"]) == 3,
        "presence_penalty": penalises(presence_penalty=2),
        "priority": is_refused(priority=10**6),
        "prompt": lambda client: ids(client) != ids(client, prompt=[100, 101, 102]),
        "repetition_penalty": penalises(repetition_penalty=5),
        "return_token_ids": lambda client: len(ids(client)) == 8,
        "seed": lambda client: (
            ids(client, temperature=2, seed=5) == ids(client, temperature=2, seed=5)
            and ids(client, temperature=2, seed=5) != ids(client, temperature=2, seed=6)
        ),
        "stop": stops,
        "stop_token_ids": lambda client: (
            ask(client, stop_token_ids=[greedy_first(client)])["usage"]["completion_tokens"] == 1
        ),
        "stream": streams,
        "stream_options": counts_usage,
        "temperature": differs(temperature=0),
        "top_k": lambda client: (
            ids(client, temperature=2, seed=11, top_k=1, max_tokens=24) == ids(client, max_tokens=24)
        ),
        "top_logprobs": lambda client: (
            len(
                ask(client, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"][0][
                    "top_logprobs"
                ]
            )
            == 3
        ),
        "top_p": lambda client: (
            ids(client, temperature=2, seed=11, top_p=0, max_tokens=24) == ids(client, max_tokens=24)
        ),
    }


def long_prompt(path: str) -> dict[str, object]:
    text = "a prompt of several blocks, so that it can be found again: " * 2
    return {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (path, name)
        for name, *cells in FIELDS
        for path, state in zip((CHAT, TEXT), cells, strict=True)
        if state == "works"
    ],
)
def test_a_field_that_works_shows_it(client, path, field):
    assert effects(path)[field](client)


def test_a_stop_token_that_no_model_has_stops_nothing(client: httpx.Client) -> None:
    plain = answer(client, TEXT, return_token_ids=True)
    stopped = answer(client, TEXT, return_token_ids=True, stop_token_ids=[2**31, 2**32 - 1])
    assert stopped["choices"] == plain["choices"]


def test_a_bias_for_a_token_that_the_model_has_not_is_refused(client: httpx.Client) -> None:
    refused = client.post(TEXT, json=body_of(TEXT, logit_bias={str(2**31): 1}))
    assert (refused.status_code, error_of(refused)["type"]) == (400, "invalid_request_error")
    assert answer(client, TEXT)
