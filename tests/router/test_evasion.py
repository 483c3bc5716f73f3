"""What looks for a way around the keys: spellings of paths, headers, requests inside requests."""

import asyncio
import json
import re
from urllib.parse import urlsplit

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.routing import Match

from warmfleet_router.access.authentication import needed_scopes
from warmfleet_router.app import build_router
from warmfleet_router.settings import RouterSettings
from warmfleet_testing.router.guarded_router import guarded, routes_of
from warmfleet_testing.router.router_fixture import RunningRouter

HELLO = {"model": "stub", "prompt": "hello"}
BODY = json.dumps(HELLO).encode()
TARGETS = [
    "//v1/models",
    "/v1//models",
    "/v1/../v1/models",
    "/livez/../v1/models",
    "/livez/..%2fv1/models",
    "/livez%2f..%2fdebug%2fconfig",
    "/livez;/../debug/config",
    "/livez/debug/config",
    "/livez?/debug/config&path=/debug/config",
    "/readyz%00/debug/config",
    "/readyz%0a",
    "/metrics%0a",
    "/metrics%0d%0a",
    "/metrics/",
    "/metrics%20",
    "/metrics#",
    "/%6detrics",
    "/debug%2fconfig",
    "/debug/%63onfig",
    "/%2e%2e/debug/config",
    "/debug/config/",
    "/debug/config%0a",
    "/DEBUG/config",
    "/Internal/fleet",
    "//debug/config",
    "///internal/fleet",
    "/./internal/fleet",
    "/internal/../livez",
    "/internal/fleet?x=/livez",
    "\\debug\\config",
    "/v1/models/..%2f..%2fdebug%2fconfig",
    "/v1/models/%2e%2e/%2e%2e/internal/fleet",
    "http://127.0.0.1/debug/config",
    "http://127.0.0.1/livez/../internal/fleet",
    "http://user:pass@127.0.0.1/internal/fleet",
    "https://example.com/v1/models",
    "*",
]
HEADERS = [
    "Host: /livez?",
    "Host: 127.0.0.1/livez#",
    "X-Original-URL: /livez\r\nHost: x",
    "X-Rewrite-URL: /livez\r\nHost: x",
    "X-Forwarded-Prefix: /livez\r\nX-Forwarded-Host: x\r\nX-Forwarded-For: 127.0.0.1\r\nHost: x",
    "X-HTTP-Method-Override: GET\r\nX-Method-Override: GET\r\nHost: x",
    "X-Warmfleet-Salt: 00\r\nX-Warmfleet-Tenant: a\r\nHost: x",
    "Authorization: Bearer\r\nHost: x",
    "Authorization: Bearer null\r\nHost: x",
    "Authorization: Basic d2Y6d2Y=\r\nHost: x",
    "Authorization: Bearer worker-token-planted\r\nHost: x",
    "Cookie: authorization=Bearer\r\nHost: x",
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAA\r\nHost: x",
    "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\nHost: x",
]


async def raw(router: RunningRouter, request: bytes, *, silence_seconds: float = 0.5) -> bytes:
    """Everything that the router answers to these bytes before it closes or falls silent."""
    parts = urlsplit(router.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    answer = b""
    try:
        writer.write(request)
        while chunk := await asyncio.wait_for(reader.read(65536), silence_seconds):
            answer += chunk
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return answer


def is_closed(answer: bytes, secrets: list[bytes]) -> bool:
    """Only refusals, probes' answers or silence; nothing that an endpoint behind a key would answer."""
    statuses = {int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3})", answer)}
    bodies = [b"alive", b"ready"]
    secret_parts = [
        b'"object":"list"',
        b"warmfleet_router_",
        b'"endpoints"',
        b'"settings"',
        b"text_completion",
        *secrets,
    ]
    is_probe = 200 not in statuses or any(body in answer for body in bodies)
    return (
        statuses <= {200, 400, 401, 404, 405, 431, 501}
        and is_probe
        and not any(word in answer for word in secret_parts)
    )


async def test_no_spelling_of_a_path_gets_past_the_keys(stub, keys, tmp_path):
    keys.add("a")
    async with guarded(stub, tmp_path, keys) as router:
        for target in TARGETS:
            for method in ("GET", "POST"):
                head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                length = f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
                answer = await raw(router, (head + length).encode() + BODY)
                assert is_closed(answer, [b"worker-token-planted"]), (method, target, answer)
        assert stub.requests == []


async def test_no_header_gets_past_the_keys(stub, keys, tmp_path):
    keys.add("a")
    async with guarded(stub, tmp_path, keys) as router:
        for header in HEADERS:
            for line in ("GET /v1/models", "GET /debug/config", "GET /metrics", "POST /v1/completions"):
                close = "" if "Upgrade" in header else "Connection: close\r\n"
                head = f"{line} HTTP/1.1\r\n{header}\r\n{close}Content-Length: {len(BODY)}\r\n\r\n"
                answer = await raw(router, head.encode() + BODY)
                assert is_closed(answer, []), (header, line, answer)
                assert b" 200 " not in answer, (header, line, answer)
        assert stub.requests == []


async def test_a_request_hidden_in_anothers_body_is_judged_by_itself(stub, keys, tmp_path):
    """Smuggling needs two readers that disagree on a length; what is left after one request is the next."""
    keys.add("a", scopes=["inference", "admin"])
    hidden = b"GET /debug/config HTTP/1.1\r\nHost: x\r\n\r\n"
    shapes = [
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\n" + hidden,
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        + hidden,
        b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, x\r\n\r\n0\r\n\r\n" + hidden,
        b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + hidden,
        b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + hidden,
        b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0;x=\r\n\r\n" + hidden,
        b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" + hidden,
        b"GET /livez HTTP/1.1\r\nHost: x\nX: y\r\n\r\n" + hidden,
        b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + hidden,
        b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: +0\r\n\r\n" + hidden,
        b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n" + hidden,
        b"\r\n\r\n" + hidden,
    ]
    async with guarded(stub, tmp_path, keys) as router:
        for shape in shapes:
            answer = await raw(router, shape)
            assert b'"settings"' not in answer, shape
            assert set(re.findall(rb"HTTP/1\.[01] (\d{3})", answer)) <= {
                b"200",
                b"400",
                b"401",
                b"405",
                b"501",
            }


async def test_two_authorization_headers_are_refused_even_if_one_is_right(stub, keys, tmp_path):
    right = keys.add("a")
    async with guarded(stub, tmp_path, keys) as router:
        lines = [f"Authorization: Bearer {right.text}", "Authorization: Bearer other"]
        for order in (lines, lines[::-1], lines[:1] * 2):
            head = "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + "\r\n".join(order)
            assert b" 401 " in await raw(router, head.encode() + b"\r\n\r\n", silence_seconds=10)
        once = "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + lines[0]
        assert b" 200 " in await raw(router, once.encode() + b"\r\n\r\n", silence_seconds=10)


ROUTES = routes_of(build_router(RouterSettings(endpoints=(), salt_key=b"k" * 32)).api.app)
FRAGMENTS = st.sampled_from(
    [
        *("/", "//", ".", "..", "%2f", "%0a", "?", "#", ";", "\\", " ", "\t", "\n", "\u2028", "\u00ad", "x"),
        *("v1", "models", "chat", "completions", "metrics", "livez", "readyz", "health"),
        *("debug", "config", "decisions", "internal", "fleet"),
    ]
)
KNOWN = st.sampled_from(
    ["/livez", "/metrics", "/debug/config", "/internal/fleet", "/v1/models", "/v1/completions"]
)


@given(
    path=st.one_of(
        st.lists(FRAGMENTS, max_size=6).map("".join), st.builds("{}{}{}".format, FRAGMENTS, KNOWN, FRAGMENTS)
    )
)
@settings(max_examples=1000)
def test_what_a_path_is_routed_to_never_wants_more_than_what_was_asked_for(path):
    """The rule looks at the path, the route at a pattern: they may not disagree."""
    if not path.isprintable():
        return  # refused before either looks
    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    for route in ROUTES:
        if route.matches(scope)[0] is not Match.NONE:
            assert needed_scopes(path) == needed_scopes(route.path)
