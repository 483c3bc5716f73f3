"""The outermost layer: request id, header bound, one log line per request."""

import re
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warmfleet_contracts.cache.worker_api import REQUEST_ID_HEADER
from warmfleet_contracts.openai import RequestError
from warmfleet_runtime.http.errors import error_response
from warmfleet_runtime.http.protocol import MAX_HEAD_BYTES, head_too_large_error

PROBE_PATHS: Final = frozenset({"/livez", "/readyz", "/health", "/metrics"})
"""What probes and scrapers ask for: no token wanted, no log line written."""
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

Refusal = Callable[[Scope, Headers], RequestError | None]
"""From a request, before its body is read, to why it is refused; None if it is not.

It decides on `scope["path"]`, the very text that is routed, and may leave in `scope["state"]` the tenant.
"""

_log = structlog.get_logger("warmfleet.http")


def _admit_all(scope: Scope, headers: Headers) -> None:
    del scope, headers


class Edge:
    """ASGI middleware around everything, the error pages included.

    Leaves in `scope["state"]` the `request_id`, and `facts`, a dict whose entries end up in the log line.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        refusal: Refusal = _admit_all,
        drawn_ids: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`drawn_ids`: names of further ids that every request gets, and the response header of each."""
        self._app = app
        self._refusal = refusal
        self._drawn_ids = dict(drawn_ids)
        self._id_headers = {"request_id": REQUEST_ID_HEADER, **drawn_ids}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        ids = {"request_id": request_id_of(headers), **{name: uuid.uuid4().hex for name in self._drawn_ids}}
        facts: dict[str, Any] = {}
        scope.setdefault("state", {})
        scope["state"].update(ids, facts=facts)
        started_seconds = time.perf_counter()
        status = 0
        is_complete = False

        async def send_with_ids(message: Message) -> None:
            nonlocal status, is_complete
            is_complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                for name, header in self._id_headers.items():
                    answered[header] = ids[name]
            await send(message)

        try:
            refusal = _too_large(scope) or _malformed(scope["path"]) or self._refusal(scope, headers)
            if refusal is None:
                await self._app(scope, receive, send_with_ids)
            else:
                facts["error"] = refusal.code or refusal.type
                await error_response(refusal)(scope, receive, send_with_ids)
        except Exception as error:  # noqa: BLE001 - nothing stands above
            # The frames and no message: that may quote what a client sent.
            frames = traceback.format_tb(error.__traceback__)
            _log.error("request crashed", **ids, error=type(error).__name__, frames="".join(frames))
            if not is_complete:
                raise ConnectionAbortedError("the answer is incomplete") from None  # closes the connection
        finally:
            if scope["path"] not in PROBE_PATHS:
                _log.info(
                    "request finished",
                    **ids,
                    method=scope["method"],
                    path=scope["path"][:256],
                    status=status,
                    seconds=round(time.perf_counter() - started_seconds, 6),
                    **facts,
                )


def request_id_of(headers: Headers) -> str:
    """The caller's request id if it is well formed, otherwise a new one."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _malformed(path: str) -> RequestError | None:
    """A rule for `/metrics` would miss `/metrics` with a line feed behind it, which a route still matches."""
    if path.isprintable():
        return None
    return RequestError("the path holds a character that cannot be printed", status=400)


def _too_large(scope: Scope) -> RequestError | None:
    """A complete head beyond the limit; the protocol in front bounds those that never end."""
    line_bytes = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    head_bytes = line_bytes + sum(len(name) + len(value) for name, value in scope["headers"])
    return head_too_large_error(head_bytes) if head_bytes > MAX_HEAD_BYTES else None
