"""The outermost layer: request id, header bound, bearer token, one log line per request."""

import hmac
import re
import time
import uuid
from typing import Any, Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warmfleet_contracts.openai import RequestError
from warmfleet_contracts.worker_api import REQUEST_ID_HEADER

MAX_HEADER_BYTES: Final = 64 * 1024
OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/health", "/metrics"})
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

log = structlog.get_logger("warmfleet.worker.http")


class Edge:
    """ASGI middleware around everything, the error pages included."""

    def __init__(self, app: ASGIApp, *, token: bytes) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = request_id_of(headers)
        facts: dict[str, Any] = {}
        scope.setdefault("state", {})
        scope["state"]["request_id"] = request_id
        scope["state"]["facts"] = facts
        started_seconds = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        try:
            refusal = self._refusal(scope, headers)
            if refusal is None:
                await self._app(scope, receive, send_with_id)
            else:
                await error_response(refusal)(scope, receive, send_with_id)
        finally:
            if scope["path"] not in OPEN_PATHS:
                log.info(
                    "request finished",
                    request_id=request_id,
                    method=scope["method"],
                    path=scope["path"][:256],
                    status=status,
                    seconds=round(time.perf_counter() - started_seconds, 6),
                    **facts,
                )

    def _refusal(self, scope: Scope, headers: Headers) -> RequestError | None:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > MAX_HEADER_BYTES:
            return RequestError(
                f"the request headers have {size} bytes, the limit is {MAX_HEADER_BYTES}", status=431
            )
        if not self._token or scope["path"] in OPEN_PATHS:
            return None
        scheme, _, presented = headers.get("authorization", "").partition(" ")
        given = presented.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
        if hmac.compare_digest(given, self._token):
            return None
        return RequestError("the request carries no valid bearer token", status=401, code="invalid_api_key")


def request_id_of(headers: Headers) -> str:
    """The caller's request id if it is well formed, otherwise a new one."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def error_response(error: RequestError) -> Response:
    """A refusal as OpenAI's JSON error."""
    headers = error.headers()
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status in {408, 413}:
        headers["connection"] = "close"  # the rest of the body is not worth reading
    return Response(error.body(), error.status, headers, media_type="application/json")
