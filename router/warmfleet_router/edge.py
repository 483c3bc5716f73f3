"""The outermost layer: request id, header bound, one log line per request."""

import re
import time
import uuid
from typing import Any, Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warmfleet_contracts.openai import RequestError
from warmfleet_contracts.worker_api import DECISION_HEADER, REQUEST_ID_HEADER

MAX_HEADER_BYTES: Final = 64 * 1024
QUIET_PATHS: Final = frozenset({"/livez", "/readyz", "/health", "/metrics"})
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

_log = structlog.get_logger("warmfleet.router.http")


class Edge:
    """ASGI middleware around everything, the error pages included.

    Gives every request an id and a decision id (in `scope["state"]`) and every response both headers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = request_id_of(Headers(scope=scope))
        decision_id = uuid.uuid4().hex
        facts: dict[str, Any] = {}
        scope.setdefault("state", {})
        scope["state"].update(request_id=request_id, decision_id=decision_id, facts=facts)
        started_seconds = time.perf_counter()
        status = 0

        async def send_with_ids(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                headers[DECISION_HEADER] = decision_id
            await send(message)

        size = sum(len(name) + len(value) for name, value in scope["headers"])
        try:
            if size > MAX_HEADER_BYTES:
                refusal = RequestError(
                    f"the request headers have {size} bytes, the limit is {MAX_HEADER_BYTES}", status=431
                )
                await error_response(refusal)(scope, receive, send_with_ids)
            else:
                await self._app(scope, receive, send_with_ids)
        finally:
            if scope["path"] not in QUIET_PATHS:
                _log.info(
                    "request finished",
                    request_id=request_id,
                    decision_id=decision_id,
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


def error_response(error: RequestError) -> Response:
    """A refusal as OpenAI's JSON error."""
    headers = error.headers()
    if error.status in {408, 413}:
        headers["connection"] = "close"  # the rest of the body is not worth reading
    return Response(error.body(), error.status, headers, media_type="application/json")
