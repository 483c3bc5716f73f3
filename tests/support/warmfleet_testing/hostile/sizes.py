"""Class B: one request that is many, or large, or never ends."""

import gzip
import json
from collections.abc import Iterable, Iterator
from typing import Final

from warmfleet_testing.hostile.request import (
    CHAT,
    LEFT_OUT,
    MODEL,
    TEXT,
    Attacks,
    Caller,
    HostileRequest,
    Wire,
    http,
    with_fields,
)

MIB: Final = 1024 * 1024
BODY_LIMIT_BYTES: Final = 32 * MIB
SOCKET_BYTES: Final = 16 * MIB
"""What kernel and event loop may hold of what was sent, on both sides."""


def size_attacks() -> list[HostileRequest]:
    """Class B."""
    attacks = Attacks("B")
    text, chat, add, raw = attacks.text, attacks.chat, attacks.add, attacks.raw_field
    text("a billion choices", param="n", n=10**9)
    chat("a billion choices of a chat", param="n", n=10**9)
    text("nine choices", param="n", n=9)
    text("no choice", param="n", n=0)
    text("the best of a billion", param="best_of", best_of=10**9)
    text("the best of eight", param="best_of", code="unsupported_parameter", best_of=8, n=1)
    text("eight choices of 64 prompts", {200, 429}, servers=("worker",), prompt=["hello"] * 64, n=8)
    text("more sequences than seats", code="too_many_sequences", servers=("router",), prompt=["a"] * 64, n=8)
    text("as many sequences as seats", {200, 429}, prompt=["hello"] * 8, n=8)
    text("65 prompts", param="prompt", prompt=["hello"] * 65)
    text("a million prompts", code="json_too_large", prompt=["x"] * 1_000_000)
    text("a million prompts of ids", code="json_too_large", prompt=[[1]] * 1_000_000)
    text("a prompt of a million ids", param="prompt", code="context_length_exceeded", prompt=[9] * 1_000_000)
    text("a prompt of 50,000 words", param="prompt", code="context_length_exceeded", prompt="hello " * 50_000)
    text("a prompt of 30 MiB", param="prompt", prompt="x" * (30 * MIB))
    text("a prompt of one run", param="prompt", code="context_length_exceeded", prompt="a" * (MIB // 4))
    chat(
        "a hundred thousand messages",
        code="json_too_large",
        messages=[{"role": "user", "content": "x"}] * 100_000,
    )
    chat(
        "a hundred thousand parts",
        code="json_too_large",
        messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * 100_000}],
    )
    text("an unknown field of 20 MiB", 200, unknown_field="x" * (20 * MIB))
    text("a hundred thousand unknown fields", 200, **{f"unknown_{number}": 1 for number in range(100_000)})
    raw("a hundred thousand times one field", ",".join(['"n":1'] * 100_000), 200)
    raw("a number of a million digits", '"max_tokens":' + "9" * 1_000_000, param="max_tokens")
    raw("a number with a million zeros", '"temperature":0.' + "0" * 1_000_000 + "1", 200)
    raw("an exponent of a million digits", '"temperature":1e' + "9" * 1_000_000, param="temperature")
    text(
        "log probabilities beyond an answer's size", 200, echo=True, logprobs=20, n=4, prompt=[[9] * 200] * 16
    )
    add("a depth of 10,000", http("POST", CHAT, b'{"model":' + b"[" * 10_000), 400)
    add(
        "a depth of 10,000, closed",
        http("POST", CHAT, b"[" * 10_000 + b"]" * 10_000),
        400,
        code="json_too_deep",
    )
    add("a depth of a million objects", http("POST", TEXT, b'{"a":' * 1_000_000), 400)
    add("ten megabytes of commas", http("POST", TEXT, b"[" + b"," * (10 * MIB) + b"]"), 400, code=None)
    add("ten megabytes of spaces", http("POST", TEXT, b" " * (10 * MIB) + b"{}"), 400, param=None)
    add("ten megabytes of quotes", http("POST", TEXT, b'{"' + b'\\"' * (5 * MIB) + b'":1}'), 400)
    add("ten megabytes of zeros", http("POST", TEXT, bytes(10 * MIB)), 400, code="invalid_json")
    add("no body", http("POST", TEXT), 400, code="invalid_json")
    packed = gzip.compress(bytes(64 * MIB))
    add("a packed bomb", http("POST", TEXT, packed, "Content-Encoding: gzip"), 400, code="invalid_json")
    add(
        "a gibibyte in chunks",
        _endless_chunks,
        413,
        may_be_cut=True,
        max_sent_bytes=BODY_LIMIT_BYTES + SOCKET_BYTES,
    )
    add("a gibibyte that is declared", _declared(1024 * MIB), 413)
    add("a length of 400 digits", _length("9" * 400), {400, 413})
    add("a length of 2^64 + 5", _length(str(2**64 + 5)), {400, 413})
    add(
        "a header of 70 KiB",
        http("GET", "/v1/models", b"", "X-A: " + "x" * 70_000),
        431,
        code="headers_too_large",
    )
    many = [f"X-{number}: {number}" for number in range(10_000)]
    add(
        "ten thousand headers",
        http("GET", "/v1/models", b"", *many),
        431,
        code="headers_too_large",
        may_be_cut=True,
    )
    add("a target of 70 KB", http("GET", "/v1/models?" + "x" * 70_000), {400, 431}, may_be_cut=True)
    add("a model of 60 KB in the path", http("GET", "/v1/models/" + "x" * 60_000), 404)
    add("a method of a megabyte", http("G" * MIB, "/v1/models"), {400, 405, 431}, may_be_cut=True)
    add("headers without end", _endless_head, 431, may_be_cut=True, max_sent_bytes=SOCKET_BYTES)
    add(
        "trailers without end",
        _endless_trailers,
        {200, 400, 431},
        may_be_cut=True,
        max_sent_bytes=SOCKET_BYTES,
    )
    add("two hundred requests in one write", _pipelined, {400})
    text("a prompt that fits, and an answer that does not", 200, prompt=[9] * 255, max_tokens=LEFT_OUT)
    tokenized = json.dumps({"model": MODEL, "tokens": [9] * 1_048_577}).encode()
    add("too many tokens to decode", http("POST", "/detokenize", tokenized), 400, param="tokens")
    tokenized = json.dumps({"model": MODEL, "prompt": "x" * (5 * MIB)}).encode()
    add("too much text to encode", http("POST", "/tokenize", tokenized), 400, param="prompt")
    return attacks.requests


def _head(caller: Caller, *lines: str) -> bytes:
    all_lines = [f"POST {TEXT} HTTP/1.1", "Host: fleet", caller.authorization, "Connection: close", *lines]
    return ("\r\n".join(line for line in all_lines if line) + "\r\n\r\n").encode()


def _endless_chunks(caller: Caller) -> Iterator[bytes]:
    yield _head(caller, "Transfer-Encoding: chunked")
    chunk = b"%x\r\n" % MIB + b"x" * MIB + b"\r\n"
    for _ in range(1024):
        yield chunk


def _declared(size: int) -> Wire:
    def wire(caller: Caller) -> Iterable[bytes]:
        return [_head(caller, f"Content-Length: {size}")]

    return wire


def _length(digits: str) -> Wire:
    def wire(caller: Caller) -> Iterable[bytes]:
        return [_head(caller, f"Content-Length: {digits}") + b"{}"]

    return wire


def _endless_head(caller: Caller) -> Iterator[bytes]:
    yield _head(caller)[:-2]
    for _ in range(1024):
        yield b"x-header: " + b"x" * (64 * 1024) + b"\r\n"


def _endless_trailers(caller: Caller) -> Iterator[bytes]:
    yield _head(caller, "Transfer-Encoding: chunked")
    yield b"%x\r\n" % len(_BODY) + _BODY + b"\r\n0\r\n"
    for _ in range(1024):
        yield b"x-trailer: " + b"x" * (64 * 1024) + b"\r\n"


def _pipelined(caller: Caller) -> Iterator[bytes]:
    lines = [f"POST {TEXT} HTTP/1.1", "Host: fleet", caller.authorization, "Content-Length: 2", "", "{}"]
    yield "\r\n".join(line for position, line in enumerate(lines) if line or position == 4).encode() * 200


_BODY: Final = with_fields(TEXT, {})
