"""What a hostile request is: the bytes that go over a socket, and the answers that are no harm."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, Final
from urllib.parse import urlsplit

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
MODEL: Final = "tiny"
TRAP: Final = "trap.invalid:9"
"""Stands in requests for the address of a listener that no process may ever connect to."""
BOTH: Final = ("router", "worker")
SILENCE_SECONDS: Final = 0.5
"""A connection on which nothing came for so long, after an answer, is complete."""
MAX_ANSWER_SECONDS: Final = 30.0

_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_REVEALS_INTERNALS: Final = re.compile(r"Traceback|\.py\b|site-packages|/proc/|/home/|/tmp/|object at 0x")
_ADMIN_ANSWERS: Final = (b'"settings"', b'"endpoints"', b'"resident_blocks"', b'"decisions"', b"salt_key")
"""Words of the answers that only admins may see: no attack has such a key."""

Wire = Callable[["Caller"], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender's key, as header lines without line ends; and where the trap listens, as `host:port`."""

    authorization: str
    trap: str


@dataclass(frozen=True, slots=True)
class HostileRequest:
    """One attack. `statuses` are those that its answers may have; all others, and silence, are a finding."""

    advisory: str
    """The letter of its class of advisories."""
    name: str
    wire: Wire
    statuses: frozenset[int]
    code: str | None = None
    """The text that the error must have, where it is known."""
    param: str | None = None
    """The field that the error must name."""
    servers: tuple[str, ...] = BOTH
    may_be_cut: bool = False
    """Whether the server may close without an answer, as a reset can overtake it."""
    max_sent_bytes: int | None = None
    """Of an endless request: how much of it may be taken."""


@dataclass(frozen=True, slots=True)
class Answer:
    """All that came back on one connection."""

    content: bytes
    sent_bytes: int
    seconds: float

    @property
    def statuses(self) -> list[int]:
        return [int(status) for status in _STATUS.findall(self.content)]

    @property
    def head(self) -> bytes:
        return self.content.partition(b"\r\n\r\n")[0].lower()

    @property
    def body(self) -> bytes:
        """Of the first answer, which must not be chunked."""
        return self.content.partition(b"\r\n\r\n")[2]

    def json(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.body)
        return decoded


def send(url: str, request: HostileRequest, caller: Caller) -> Answer:
    """Write the request, as far as the server takes it, and read until it closes or falls silent."""
    address = urlsplit(url)
    started = time.monotonic()
    sent, content = 0, bytearray()
    with socket.create_connection((address.hostname, address.port), timeout=MAX_ANSWER_SECONDS) as connection:
        try:
            for piece in request.wire(caller):
                connection.sendall(piece)
                sent += len(piece)
        except ConnectionError:
            pass  # refused in the middle; its answer may still be there
        try:
            while chunk := connection.recv(65_536):
                content += chunk
                if b"connection: close" not in content[:4096].lower():
                    connection.settimeout(SILENCE_SECONDS)
        except (ConnectionError, TimeoutError):
            pass
    return Answer(bytes(content), sent, time.monotonic() - started)


def fault_of(request: HostileRequest, answer: Answer) -> str:
    """What is wrong with an answer to a hostile request; "" for nothing."""
    statuses = set(answer.statuses)
    if not statuses:
        return "" if request.may_be_cut else f"no answer, {answer.content[:200]!r}"
    if not statuses <= request.statuses or any(status >= 500 and status != 503 for status in statuses):
        return f"answered {sorted(statuses)}, {answer.content[:600]!r}"
    if any(word in answer.content for word in _ADMIN_ANSWERS):
        return f"an admin's answer, {answer.content[:600]!r}"
    if answer.seconds > MAX_ANSWER_SECONDS:
        return f"answered after {answer.seconds:.1f} s"
    if request.max_sent_bytes is not None and answer.sent_bytes > request.max_sent_bytes:
        return f"{answer.sent_bytes} bytes were taken"
    if answer.statuses[0] < 400:
        return ""
    return _misshapen(request, answer)


def _misshapen(request: HostileRequest, answer: Answer) -> str:
    if b"\r\nx-request-id: " not in answer.head:
        return f"no request id, {answer.head!r}"
    if len(answer.statuses) > 1:
        return ""
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError):
        return f"no OpenAI error, {answer.body[:200]!r}"
    if set(error) != {"message", "type", "param", "code"} or not 0 < len(error["message"]) < 1000:
        return f"no OpenAI error, {error!r}"
    if _REVEALS_INTERNALS.search(error["message"]):
        return f"reveals internals, {error!r}"
    if request.param is not None and error["param"] != request.param:
        return f"names {error['param']!r}, {error!r}"
    if request.code is not None and error["code"] != request.code:
        return f"has code {error['code']!r}, {error!r}"
    return ""


def http(
    method: str, path: str, body: bytes = b"", *headers: str, with_key: bool = True, close: bool = True
) -> Wire:
    """A well-formed request with this body; `headers` are lines."""

    def wire(caller: Caller) -> Iterable[bytes]:
        content = body.replace(TRAP.encode(), caller.trap.encode())
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [] if any(line.lower().startswith("host:") for line in headers) else ["Host: fleet"]
        lines += [caller.authorization] if with_key and caller.authorization else []
        lines += ["Connection: close"] if close else []
        lines += [line.replace(TRAP, caller.trap) for line in headers]
        lines += [f"Content-Length: {len(content)}"] if content or method == "POST" else []
        # Latin-1, because a header may hold any byte.
        return ["\r\n".join([*lines, "", ""]).replace(TRAP, caller.trap).encode("latin-1"), content]

    return wire


def with_fields(path: str, fields: dict[str, Any]) -> bytes:
    """A request of a few tokens with these fields; None leaves one of the few out that it has."""
    prompt = {"messages": [{"role": "user", "content": "hello"}]} if path == CHAT else {"prompt": "hello"}
    body = {"model": MODEL, "max_tokens": 4, "temperature": 0, **prompt, **fields}
    return json.dumps({name: value for name, value in body.items() if value is not LEFT_OUT}).encode()


LEFT_OUT: Final = object()


class Attacks:
    """Collects the requests of one class of advisories."""

    def __init__(self, advisory: str) -> None:
        self.advisory = advisory
        self.requests: list[HostileRequest] = []

    def add(
        self,
        name: str,
        wire: Wire,
        statuses: int | set[int],
        *,
        param: str | None = None,
        code: str | None = None,
        **more: Any,
    ) -> None:
        allowed = frozenset({statuses} if isinstance(statuses, int) else statuses)
        self.requests.append(
            HostileRequest(self.advisory, name, wire, allowed, code=code, param=param, **more)
        )

    def _completion(
        self,
        path: str,
        /,
        name: str,
        statuses: int | set[int] = 400,
        param: str | None = None,
        code: str | None = None,
        servers: tuple[str, ...] = BOTH,
        **fields: Any,
    ) -> None:
        """A completion with these fields in its body; `param` and `code` are those of the error."""
        wire = http("POST", path, with_fields(path, fields))
        self.add(name, wire, statuses, param=param, code=code, servers=servers)

    text = partialmethod(_completion, TEXT)
    chat = partialmethod(_completion, CHAT)

    def raw_field(
        self, name: str, field: str, statuses: int | set[int] = 400, *, param: str | None = None
    ) -> None:
        """A text completion with `field`, `"name":value` as no JSON library writes it, behind its others."""
        body = with_fields(TEXT, {})[:-1] + b"," + field.encode() + b"}"
        self.add(name, http("POST", TEXT, body), statuses, param=param)
