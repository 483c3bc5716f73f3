"""Class F: the sender, its target, and where one request ends."""

import json
from collections.abc import Iterable
from typing import Final

from warmfleet_testing.hostile.request import (
    TEXT,
    Attacks,
    Caller,
    HostileRequest,
    Wire,
    http,
    with_fields,
)

BODY: Final = with_fields(TEXT, {})
SECRET_PATHS: Final = ("/debug/config", "/internal/fleet", "/internal/decisions", "/internal/cache")


def head_attacks(wrong_key: str, others_key: str) -> list[HostileRequest]:
    """Class F, against a router with keys. `wrong_key` is none, `others_key` may call another model only."""
    attacks = Attacks("F")
    add = attacks.add

    def keyless(name: str, line: str, path: str = TEXT, **more: object) -> None:
        lines = [line] if line else []
        wire = http("POST", path, BODY, *lines, with_key=False)
        add(name, wire, 401, code="invalid_api_key", **more)

    keyless("no key", "")
    keyless("no key for what is not there", "", "/nothing")
    keyless("no key for an adapter", "", "/v1/load_lora_adapter")
    keyless("no key for what vLLM leaves open", "", "/invocations")
    keyless("no key to pause", "", "/pause")
    keyless("no key to encode", "", "/tokenize")
    keyless("a wrong key", f"Authorization: Bearer {wrong_key}")
    keyless("an empty key", "Authorization: Bearer ")
    keyless("a key without a scheme", f"Authorization: {wrong_key}")
    keyless("a scheme of another kind", "Authorization: Basic d2Y6d2Y=")
    keyless("a key of a megabyte's part", "Authorization: Bearer " + "k" * 60_000)
    keyless("a key that asks a database", "Authorization: Bearer ' OR '1'='1' --")
    keyless("a key of bytes", "Authorization: Bearer \xff\xfe\x80")
    keyless("a key in another header", f"X-Api-Key: {others_key}")
    keyless("a key in a cookie", f"Cookie: authorization=Bearer {others_key}")
    keyless("a key in the path", "", f"{TEXT}?api_key={others_key}&authorization=Bearer%20{others_key}")
    keyless(
        "two keys",
        f"Authorization: Bearer {others_key}\r\nAuthorization: Bearer {others_key}",
        servers=("router",),
    )
    theirs = http("POST", TEXT, BODY, f"Authorization: Bearer {others_key}", with_key=False)
    add("a key for another model", theirs, {403, 404}, servers=("router",))
    for path in SECRET_PATHS:
        add(
            f"a key without scope for {path}",
            http("GET", path),
            403,
            code="missing_scope",
            servers=("router",),
        )
    for target in (
        "/livez/../debug/config",
        "/livez%2f..%2fdebug%2fconfig",
        "//debug/config",
        "/%64ebug/config",
        "/debug/config%0a",
        "/debug/config/",
        "/./internal/fleet",
        "/livez;/../internal/fleet",
        "http://fleet/livez/../internal/fleet",
        "/v1/models/..%2f..%2fdebug%2fconfig",
        "\\debug\\config",
        "/DEBUG/CONFIG",
    ):
        add(f"the path {target}", http("GET", target), {400, 403, 404}, servers=("router",))
        unnamed = http("GET", target, with_key=False)
        add(f"the path {target} without a key", unnamed, {400, 401, 404})
    for line in (
        "Host: /livez?",
        "Host: fleet/livez#",
        "X-Original-URL: /livez",
        "X-Rewrite-URL: /livez",
        "X-Forwarded-Prefix: /livez",
    ):
        wire = http("GET", "/debug/config", b"", line, with_key=False)
        add(f"a header that is a path, {line}", wire, {400, 401})
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "GET"):
        add(f"{method} of a completion", http(method, TEXT), 405, code="method_not_allowed")
    add("HEAD of the models", http("HEAD", "/v1/models"), {200, 405})
    _smuggled(attacks)
    _claimed(attacks)
    return attacks.requests


def _smuggled(attacks: Attacks) -> None:
    """A second request where two readers could disagree on the first one's length."""
    hidden = b"GET /debug/config HTTP/1.1\r\nHost: x\r\n\r\n"
    shapes = {
        "two lengths": (b"Content-Length: 0\r\nContent-Length: 40\r\n", hidden),
        "one length twice": (b"Content-Length: 2\r\nContent-Length: 2\r\n", b"{}" + hidden),
        "length and chunks": (b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n" + hidden),
        "chunks and length": (b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", b"0\r\n\r\n" + hidden),
        "chunks of another kind": (b"Transfer-Encoding: chunked, x\r\n", b"0\r\n\r\n" + hidden),
        "chunks twice": (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n", b"0\r\n\r\n" + hidden),
        "chunks behind a space": (b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n" + hidden),
        "chunks behind a tab": (b"Transfer-Encoding:\x0bchunked\r\n", b"0\r\n\r\n" + hidden),
        "chunks on a second line": (b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n" + hidden),
        "a folded header": (b"X: a\r\n b\r\nContent-Length: 2\r\n", b"{}" + hidden),
        "a length with a sign": (b"Content-Length: +2\r\n", b"{}" + hidden),
        "a negative length": (b"Content-Length: -1\r\n", hidden),
        "a length in hexadecimal": (b"Content-Length: 0x2\r\n", b"{}" + hidden),
        "a length of two": (b"Content-Length: 2, 2\r\n", b"{}" + hidden),
        "a null in a header": (b"X: a\x00b\r\nContent-Length: 2\r\n", b"{}" + hidden),
        "a null in a name": (b"X\x00: a\r\nContent-Length: 2\r\n", b"{}" + hidden),
        "a header of no name": (b": a\r\nContent-Length: 2\r\n", b"{}" + hidden),
        "a line end alone": (b"X: a\nContent-Length: 2\r\n", b"{}" + hidden),
        "half a line end": (b"X: a\rContent-Length: 2\r\n", b"{}" + hidden),
        "a chunk with a sign": (b"Transfer-Encoding: chunked\r\n", b"+2\r\n{}\r\n0\r\n\r\n" + hidden),
        "a chunk beyond 64 bits": (
            b"Transfer-Encoding: chunked\r\n",
            b"10000000000000002\r\n{}\r\n0\r\n\r\n" + hidden,
        ),
        "a chunk with an extension": (
            b"Transfer-Encoding: chunked\r\n",
            b"2;a=" + b"x" * 9000 + b"\r\n{}\r\n0\r\n\r\n" + hidden,
        ),
        "a chunk of a wrong end": (b"Transfer-Encoding: chunked\r\n", b"2\r\n{}xx0\r\n\r\n" + hidden),
        "a hundred thousand chunks": (
            b"Transfer-Encoding: chunked\r\n",
            b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n",
        ),
        "a trailer that is a key": (
            b"Transfer-Encoding: chunked\r\n",
            b"0\r\nAuthorization: Bearer x\r\n\r\n" + hidden,
        ),
        "an older version": (b"Connection: keep-alive\r\n", hidden),
        "a body that no method asks for": (b"", hidden * 2),
    }
    for name, (lines, rest) in shapes.items():
        wire = _posted("/v1/completions", lines, rest)
        attacks.add(f"smuggled: {name}", wire, {400, 401, 413, 431})
    attacks.add("no HTTP", _bytes(b"\x16\x03\x01\x02\x00\x01\n\r\n\r\n"), 400, code="invalid_http")
    attacks.add(
        "HTTP/2 at once", _bytes(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), {400, 401, 404, 505}, may_be_cut=True
    )
    attacks.add("HTTP of the future", _bytes(b"GET /debug/config HTTP/9.9\r\n\r\n"), {400, 401})
    attacks.add("HTTP of the past", _bytes(b"GET /debug/config\r\n\r\n"), {400, 401}, may_be_cut=True)
    attacks.add("no Host", _bytes(b"GET /debug/config HTTP/1.1\r\n\r\n"), {400, 401})
    attacks.add("a frame of messages", _bytes(b"\x93\xa3add\xc4\x04abcd" * 100 + b"\r\n\r\n"), 400)
    attacks.add(
        "a pickle",
        _bytes(b"\x80\x04\x95\x1f\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93.\r\n\r\n"),
        400,
    )


def _claimed(attacks: Attacks) -> None:
    """Headers that a worker would honour, or refuse with 400 or 421, if the router let them through."""
    claims = {
        "salt": "not hexadecimal",
        "seed": "-1",
        "priority": "-1000",
        "dispatch": "abc",
        "uid": "another-worker",
        "router": "x" * 5000,
    }
    for name, value in claims.items():
        for spelling in (f"x-warmfleet-{name}", f"X-WARMFLEET-{name.upper()}"):
            wire = http("POST", TEXT, BODY, f"{spelling}: {value}")
            attacks.add(f"claimed: {spelling}", wire, 200, servers=("router",))
    for named in ("authorization", "x-warmfleet-uid, x-warmfleet-salt", "content-length, content-type, host"):
        wire = http("POST", TEXT, BODY, f"Connection: close, {named}", close=False)
        attacks.add(f"claimed: a connection that names {named}", wire, 200, servers=("router",))
    for line in (
        "Expect: 100-continue",
        "TE: trailers",
        "Accept-Encoding: gzip, br, zstd",
        "Content-Type: text/plain",
    ):
        wire = http("POST", TEXT, BODY, line)
        attacks.add(f"claimed: {line}", wire, {100, 200}, servers=("router",))
    # Straight to a worker, with its token: what a router that has lost its mind might send.
    for name, value in (
        *list(claims.items())[:4],
        ("salt", "00" * 65),
        ("seed", str(2**64)),
        ("dispatch", "9" * 400),
    ):
        wire = http("POST", TEXT, BODY, f"x-warmfleet-{name}: {value}")
        attacks.add(f"dispatched: {name} {value[:16]}", wire, 400, servers=("worker",))
    wire = http("POST", TEXT, BODY, "x-warmfleet-uid: another")
    attacks.add("dispatched: to another", wire, 421, code="misdirected", servers=("worker",))
    for query in ("after=-1", "after=" + "9" * 400, "after=1e9", "after=%00"):
        wire = http("GET", f"/internal/kv-events?epoch=x&{query}", b"", "x-warmfleet-nonce: 00")
        attacks.add(f"dispatched: events {query[:12]}", wire, 400, param="after", servers=("worker",))
    wire = http("GET", "/internal/kv-events", b"", "x-warmfleet-nonce: " + "00" * 65)
    attacks.add("dispatched: a long nonce", wire, 400, param="x-warmfleet-nonce", servers=("worker",))
    wire = http("GET", "/internal/tokenizer/..%2f..%2f..%2fetc%2fpasswd")
    attacks.add("dispatched: a digest that is a path", wire, 404, servers=("worker",))
    wire = http("POST", "/internal/cache", json.dumps({}).encode())
    attacks.add("dispatched: a cache that is posted to", wire, 405, servers=("worker",))


def _posted(path: str, lines: bytes, rest: bytes) -> Wire:
    def wire(caller: Caller) -> Iterable[bytes]:
        return [
            f"POST {path} HTTP/1.1\r\nHost: fleet\r\n{caller.authorization}\r\n".encode()
            + lines
            + b"\r\n"
            + rest
        ]

    return wire


def _bytes(content: bytes) -> Wire:
    def wire(caller: Caller) -> Iterable[bytes]:
        del caller
        return [content]

    return wire
