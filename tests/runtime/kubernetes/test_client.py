"""The client against a small HTTP server that answers as no API server should."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
import yaml
from aiohttp import web

from warmfleet_contracts.errors import WarmfleetError
from warmfleet_runtime.kubernetes import client as client_module
from warmfleet_runtime.kubernetes.client import KubernetesClient
from warmfleet_runtime.kubernetes.errors import ApiServerError, UnreadableError
from warmfleet_runtime.kubernetes.lists import list_pages
from warmfleet_runtime.kubernetes.media_types import APPLY_PATCH, MERGE_PATCH

STATUS = {"kind": "Status", "message": 'pods "a" not found', "reason": "NotFound", "code": 404}


@asynccontextmanager
async def served(handler, tmp_path):
    """A client of a server whose every request `handler` answers."""
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    path = tmp_path / "kubeconfig"
    entry = {"name": "a", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "a", "context": {"cluster": "a", "user": "a"}}
    user = {"name": "a", "user": {"token": "secret"}}
    path.write_text(
        yaml.safe_dump({"current-context": "a", "contexts": [context], "clusters": [entry], "users": [user]})
    )
    try:
        async with KubernetesClient.connect(path, user_agent="test/1") as client:
            yield client
    finally:
        await runner.cleanup()


def answer(body=b"{}", status=200, **headers):
    async def handler(_request):
        return web.Response(body=body, status=status, headers=headers)

    return handler


async def test_a_request_carries_identity_body_and_query(tmp_path):
    seen = []

    async def handler(request):
        seen.append((request, await request.text()))
        return web.json_response({"kind": "Pod"})

    async with served(handler, tmp_path) as client:
        found = await client.request(
            "PATCH",
            "/api/v1/pods/a",
            query={"fieldManager": "x", "labelSelector": "a=b,c in (d, e)"},
            body={"spec": {}},
            content_type=APPLY_PATCH,
        )

    ((request, body),) = seen
    assert found == {"kind": "Pod"}
    assert json.loads(body) == {"spec": {}}
    assert dict(request.query) == {"fieldManager": "x", "labelSelector": "a=b,c in (d, e)"}
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["User-Agent"] == "test/1"
    assert request.headers["Content-Type"] == APPLY_PATCH


async def test_the_verbs_are_those_of_http(tmp_path):
    seen = []

    async def handler(request):
        seen.append((request.method, request.headers.get("Content-Type"), await request.text()))
        return web.json_response({})

    async with served(handler, tmp_path) as client:
        await client.get("/x")
        await client.post("/x", {"a": 1})
        await client.patch("/x", {"a": 1}, MERGE_PATCH)
        await client.delete("/x")
        await client.delete("/x", {"a": 1})

    json_type, body = "application/json", '{"a": 1}'
    assert [one for one in seen if one[0] != "DELETE"] == [
        ("GET", None, ""),
        ("POST", json_type, body),
        ("PATCH", MERGE_PATCH, body),
    ]
    assert [text for method, _, text in seen if method == "DELETE"] == ["", body]


async def test_an_error_holds_what_the_api_server_wrote(tmp_path):
    handler = answer(json.dumps(STATUS).encode(), 404, **{"Retry-After": "7"})
    async with served(handler, tmp_path) as client:
        with pytest.raises(ApiServerError) as caught:
            await client.get("/api/v1/pods/a")

    error = caught.value
    assert (error.status, error.reason, error.message) == (404, "NotFound", STATUS["message"])
    assert (error.summary, error.retry_after_seconds) == ("answers 404", 7.0)
    assert str(error) == f"answers 404: {STATUS['message']}"


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"[]", b"\xff", b""])
async def test_an_error_page_of_a_proxy_is_an_error_with_its_text(tmp_path, body):
    async with served(answer(body, 502), tmp_path) as client:
        with pytest.raises(ApiServerError) as caught:
            await client.get("/")

    assert caught.value.status == 502
    assert caught.value.message == body.decode("utf-8", "replace")


NESTED = b'{"a":' * 3000 + b"1" + b"}" * 3000


@pytest.mark.parametrize(
    "body", [b'{"message":"Dienst nicht verf\xfcgbar"}', NESTED], ids=["latin-1", "nested"]
)
async def test_what_cannot_be_decoded_is_an_error_of_the_api_server_with_any_status(tmp_path, body):
    async with served(answer(body, 503), tmp_path) as client:
        with pytest.raises(ApiServerError) as refused:
            await client.get("/api/v1/pods/a")
    async with served(answer(body), tmp_path) as client:
        with pytest.raises(UnreadableError):
            await client.get("/api/v1/pods/a")

    assert refused.value.status == 503


async def test_a_list_that_cannot_be_decoded_is_an_error(tmp_path):
    async with served(answer(NESTED), tmp_path) as client:
        with pytest.raises(UnreadableError):
            await anext(list_pages(client, "/api/v1/pods", {}))


async def test_a_message_has_a_bound(tmp_path):
    async with served(answer(b"x" * 1_000_000, 500), tmp_path) as client:
        with pytest.raises(ApiServerError) as caught:
            await client.get("/")

    assert caught.value.message == "x" * client_module.MAX_MESSAGE_LENGTH


async def test_a_proxy_of_the_environment_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    async with served(answer(), tmp_path) as client:
        assert await client.get("/") == {}


async def test_a_redirect_is_not_followed(tmp_path):
    async with served(answer(status=302, Location="http://127.0.0.1:1/"), tmp_path) as client:
        with pytest.raises(ApiServerError, match="answers 302"):
            await client.get("/")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"\xff"])
async def test_a_body_that_is_no_object_is_an_error(tmp_path, body):
    async with served(answer(body), tmp_path) as client:
        with pytest.raises(UnreadableError):
            await client.get("/")


async def test_a_body_and_a_line_have_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "MAX_BODY_BYTES", 999)
    monkeypatch.setattr(client_module, "MAX_LINE_BYTES", 999)
    async with served(answer(b"x" * 1000), tmp_path) as client:
        with pytest.raises(ApiServerError, match="answers more than 999 bytes"):
            await client.read("/", {})
        with pytest.raises(ApiServerError, match="sends a line of more than 999 bytes"):
            [line async for line in client.lines("/", {}, 5.0)]


async def test_a_server_that_does_not_answer_or_is_gone_is_an_error_without_a_status(tmp_path):
    async def silent(_request):
        await asyncio.sleep(30)

    async with served(silent, tmp_path) as client:
        with pytest.raises(ApiServerError, match=r"no answer within 0.05 s") as late:
            await client.request("GET", "/", timeout_seconds=0.05)
    kubeconfig = tmp_path / "kubeconfig"  # of a server that is gone
    async with KubernetesClient.connect(kubeconfig, user_agent="test") as client:
        with pytest.raises(ApiServerError, match="cannot be reached") as gone:
            await client.get("/")

    assert (late.value.status, gone.value.status) == (None, None)
    assert gone.value.message


async def test_lines_begin_with_an_empty_one_and_end_with_the_body(tmp_path):
    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b'{"a"', b": 1}\n\n{", b"}\nrest"):
            await response.write(piece)
            await asyncio.sleep(0.01)
        return response

    async with served(handler, tmp_path) as client:
        lines = [line async for line in client.lines("/", {"watch": "true"}, 5.0)]

    assert lines == [b"", b'{"a": 1}', b"{}"]


async def test_a_watch_that_is_silent_or_breaks_off_is_an_error(tmp_path):
    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{}\n")
        if request.path == "/silent":
            await asyncio.sleep(30)
        request.transport.abort()
        return response

    for path, summary in (("/silent", "has fallen silent"), ("/broken", "cannot be reached")):
        lines = []
        async with served(handler, tmp_path) as client:
            with pytest.raises(ApiServerError, match=summary):
                async for line in client.lines(path, {}, 0.1):
                    lines.append(line)  # noqa: PERF401 - the lines before the error count
        assert lines == [b"", b"{}"]


class RefusedError(WarmfleetError):
    """This process may not write."""


async def test_a_write_that_is_refused_before_it_is_sent_never_arrives(tmp_path):
    seen, asked = [], []

    async def handler(request):
        seen.append(request.method)
        return web.json_response({})

    def allow():
        asked.append(len(seen))

    def refuse():
        raise RefusedError

    async with served(handler, tmp_path) as client:
        await client.request("POST", "/", body={}, before_send=allow)
        with pytest.raises(RefusedError):
            await client.request("POST", "/", body={}, before_send=refuse)
        await client.request("PUT", "/", body={})

    assert asked == [0]
    assert seen == ["POST", "PUT"]


async def test_pages_of_a_list_are_read_until_there_is_no_token(tmp_path):
    queries = []

    async def handler(request):
        queries.append((dict(request.query), request.headers["Accept"]))
        token = request.query.get("continue", "")
        metadata = {"resourceVersion": "7", "continue": "" if token == "b+/=" else f"{token}b+/="}
        return web.json_response({"metadata": metadata, "items": [{"token": token}]})

    async with served(handler, tmp_path) as client:
        pages = [page async for page in list_pages(client, "/x", {"a": "b"}, page_objects=1, accept="y")]

    assert [page.metadata.resource_version for page in pages] == ["7", "7"]
    assert [bytes(item) for page in pages for item in page.items] == [b'{"token": ""}', b'{"token": "b+/="}']
    assert queries == [
        ({"a": "b", "limit": "1"}, "y"),
        ({"a": "b", "limit": "1", "continue": "b+/="}, "y"),
    ]
