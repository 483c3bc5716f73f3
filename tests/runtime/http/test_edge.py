"""The edge that every server has, over loopback HTTP around an application of a few lines."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope
from structlog.testing import capture_logs

from warmfleet_contracts.openai import RequestError
from warmfleet_runtime.http.app import SERVED_PATHS, openai_app
from warmfleet_runtime.http.edge import Edge
from warmfleet_runtime.http.listener import bind
from warmfleet_runtime.http.server import Server


async def state(request: Request) -> Response:
    return JSONResponse({name: getattr(request.state, name) for name in ("request_id", "drawn_id")})


async def posted(request: Request) -> Response:
    return Response()


async def crash(request: Request) -> Response:
    raise ZeroDivisionError("a secret of ours")


async def refuse(request: Request) -> Response:
    raise RequestError("not today", status=429, code="overloaded", retry_after_seconds=3)


@pytest.fixture
async def refused() -> list[RequestError]:
    return []


@pytest.fixture
async def client(refused: list[RequestError]) -> AsyncGenerator[httpx.AsyncClient, None]:
    routes = [
        Route("/state", state, methods=["GET"]),
        Route("/posted", posted, methods=["POST"]),
        Route("/crash", crash, methods=["GET"]),
        Route("/refuse", refuse, methods=["GET"]),
    ]
    app = openai_app(routes, on_refused=refused.append)
    async with serving(Edge(app, refusal=closed, drawn_ids={"drawn_id": "x-drawn"})) as client:
        yield client


def closed(scope: Scope, headers: Headers) -> RequestError | None:
    return RequestError("closed", status=401) if scope["path"] == "/closed" else None


@contextlib.asynccontextmanager
async def serving(app: Edge) -> AsyncGenerator[httpx.AsyncClient, None]:
    listener = bind("127.0.0.1", 0)
    server = Server(app, shutdown_seconds=1)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
        yield client
    server.should_exit = True
    await task


def error_of(response: httpx.Response) -> dict[str, object]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_a_well_formed_request_id_is_kept_and_seen_by_the_application(client):
    response = await client.get("/state", headers={"x-request-id": "mine_1-a"})

    assert response.headers["x-request-id"] == response.json()["request_id"] == "mine_1-a"


@pytest.mark.parametrize("given", ["", "not an id", "x" * 65, "a;b", "a\tb"])
async def test_a_malformed_request_id_is_replaced(client, given):
    response = await client.get("/state", headers={"x-request-id": given})

    assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


async def test_every_request_gets_its_own_drawn_id(client):
    first, second = await client.get("/state"), await client.get("/state")

    assert first.headers["x-drawn"] == first.json()["drawn_id"]
    assert first.headers["x-drawn"] != second.headers["x-drawn"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nothing", 404), ("/posted", 405), ("/crash", 500), ("/refuse", 429), ("/closed", 401)],
)
async def test_every_error_has_openais_shape_and_both_ids(client, path, status):
    response = await client.get(path)

    assert response.status_code == status
    assert error_of(response)
    assert response.headers["x-request-id"]
    assert response.headers["x-drawn"]


async def test_an_unknown_path_is_answered_with_what_is_served_and_not_redirected(client):
    missing, slash = await client.get("/v1/embeddings"), await client.get("/state/")

    assert all(path in error_of(missing)["message"] for path in SERVED_PATHS)
    assert slash.status_code == 404


async def test_a_wrong_method_is_answered_with_the_right_one(client):
    response = await client.get("/posted")

    assert response.headers["allow"] == "POST"


async def test_a_crash_reveals_no_internals(client):
    response = await client.get("/crash")

    assert "secret" not in response.text
    assert error_of(response)["type"] == "server_error"


async def test_a_refusal_is_counted_and_has_the_seconds_to_wait(client, refused):
    response = await client.get("/refuse")

    assert response.headers["retry-after"] == "3"
    assert [error.code for error in refused] == ["overloaded"]


async def test_a_request_without_a_key_is_answered_with_how_to_send_one(client):
    response = await client.get("/closed")

    assert response.headers["www-authenticate"] == "Bearer"


async def test_headers_beyond_the_limit_are_refused(client):
    many = [(f"x-padding-{number}", "x" * 6_000) for number in range(12)]
    response = await client.get("/state", headers=many)

    assert response.status_code in {400, 431}  # the HTTP parser has a bound of its own


async def test_a_request_line_beyond_the_limit_is_refused(client):
    response = await client.get("/state?" + "x" * 65_000, headers={"x-padding": "x" * 1_000})

    assert response.status_code == 431
    assert error_of(response)["code"] == "headers_too_large"


async def test_a_crash_is_logged_with_its_request_id_and_not_with_its_message(client):
    with capture_logs() as lines:
        response = await client.get("/crash", headers={"x-request-id": "crashed-1"})

    assert response.headers["x-request-id"] == "crashed-1"
    (line,) = [line for line in lines if line["event"] == "request crashed"]
    assert (line["request_id"], line["error"]) == ("crashed-1", "ZeroDivisionError")
    assert "in crash" in line["frames"]
    assert "a secret of ours\n" not in str(lines)
