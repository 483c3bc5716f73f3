"""Routes as an application that answers in OpenAI's shape whatever goes wrong."""

from collections.abc import Callable, Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from warmfleet_contracts.http.errors import error_response
from warmfleet_contracts.openai import RequestError

SERVED_PATHS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/models/{id}",
    "/tokenize",
    "/detokenize",
)
"""What a client is told when it asks for something else."""


def _not_counted(error: RequestError) -> None:
    del error


def openai_app(
    routes: Sequence[Route], *, on_refused: Callable[[RequestError], None] = _not_counted
) -> ASGIApp:
    """`routes` with OpenAI-shaped errors; wants an `Edge` around it. `on_refused` hears every refusal."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        request.state.facts["error"] = error.code or error.type
        on_refused(error)
        return error_response(error)

    app = Starlette(
        routes=routes,
        exception_handlers={
            RequestError: refused,
            HTTPException: _not_routed,
            ClientDisconnect: _client_left,
            Exception: _failed,
        },
    )
    # A redirect would carry no request id and confuse clients that post.
    app.router.redirect_slashes = False
    return app


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:128]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        refusal = RequestError(f"{request.method} is not allowed on {path}; allowed: {allowed}", status=405)
        response = error_response(refusal)
        response.headers["allow"] = allowed
        return response
    served = ", ".join(SERVED_PATHS)
    return error_response(
        RequestError(f"{path} is not served here; served: {served}", status=404, code="not_found")
    )


async def _client_left(request: Request, error: Exception) -> Response:
    del request, error
    return Response(status_code=499)  # nobody reads it; the log line says what happened


async def _failed(request: Request, error: Exception) -> Response:
    del request, error  # the server logs the trace; a client learns nothing of our insides
    return error_response(
        RequestError("the server failed while it handled this request", status=500, type="server_error")
    )
