"""Routes as an application that answers every error in OpenAI's shape."""

from collections.abc import Callable, Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from warmfleet_contracts.openai import RequestError
from warmfleet_runtime.http.errors import error_response

SERVED_PATHS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/models/{id}",
    "/tokenize",
    "/detokenize",
)
"""The message for a path that is not served."""


def _not_counted(error: RequestError) -> None:
    del error


def openai_app(
    routes: Sequence[Route], *, on_refused: Callable[[RequestError], None] = _not_counted
) -> ASGIApp:
    """`routes` with OpenAI-shaped errors, inside an `Edge`. `on_refused` is called for every refusal."""

    async def not_routed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refusal = _not_routed(request, error.status_code, _allowed_methods(routes, request.scope))
        request.state.facts["error"] = refusal.code
        on_refused(refusal)
        response = error_response(refusal)
        if refusal.status == 405:
            response.headers["allow"] = _allowed_methods(routes, request.scope)
        return response

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        request.state.facts["error"] = error.code or error.type
        on_refused(error)
        return error_response(error)

    app = Starlette(
        routes=routes,
        exception_handlers={
            RequestError: refused,
            HTTPException: not_routed,
            ClientDisconnect: _client_left,
            Exception: _failed,
        },
    )
    # A redirect would carry no request id and confuse clients that post.
    app.router.redirect_slashes = False
    return app


def _not_routed(request: Request, status: int, allowed: str) -> RequestError:
    path = request.scope["path"][:128]
    if status == 405:
        return RequestError(
            f"{request.method} is not allowed on {path}; allowed: {allowed}",
            status=405,
            code="method_not_allowed",
        )
    served = ", ".join(SERVED_PATHS)
    return RequestError(f"{path} is not served here; served: {served}", status=404, code="not_found")


def _allowed_methods(routes: Sequence[Route], scope: Scope) -> str:
    """Of all routes on this path: one path may have a route per method."""
    on_path = (route for route in routes if route.matches(scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in on_path for method in route.methods or ()}))


async def _client_left(request: Request, error: Exception) -> Response:
    del request, error
    return Response(status_code=499)  # the client has left; the log line has the status


async def _failed(request: Request, error: Exception) -> Response:
    del request, error  # the server logs the trace; a client gets no internal details
    return error_response(
        RequestError("the server failed while it handled this request", status=500, type="server_error")
    )
