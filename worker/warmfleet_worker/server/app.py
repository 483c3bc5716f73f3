"""All routes of a worker, and the OpenAI shape of everything that goes wrong."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from warmfleet_contracts.openai import RequestError
from warmfleet_contracts.worker_api import CACHE_PATH, KV_EVENTS_PATH, TOKENIZER_PATH
from warmfleet_worker.server.edge import Edge, error_response
from warmfleet_worker.server.internal import InternalEndpoints
from warmfleet_worker.server.openai_endpoints import OpenAIEndpoints
from warmfleet_worker.server.probes import Probes
from warmfleet_worker.server.state import WorkerState

SERVED_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/models/{id}",
    "/tokenize",
    "/detokenize",
)


def build_app(worker: WorkerState) -> ASGIApp:
    """The worker as an ASGI application."""
    openai, internal, probes = OpenAIEndpoints(worker), InternalEndpoints(worker), Probes(worker)
    routes = [
        Route("/v1/chat/completions", openai.chat, methods=["POST"]),
        Route("/v1/completions", openai.completion, methods=["POST"]),
        Route("/v1/models", openai.models, methods=["GET"]),
        Route("/v1/models/{id:path}", openai.model, methods=["GET"]),
        Route("/tokenize", openai.tokenize, methods=["POST"]),
        Route("/detokenize", openai.detokenize, methods=["POST"]),
        Route("/version", probes.version, methods=["GET"]),
        Route("/health", probes.readyz, methods=["GET"]),
        Route("/livez", probes.livez, methods=["GET"]),
        Route("/readyz", probes.readyz, methods=["GET"]),
        Route("/metrics", probes.metrics, methods=["GET"]),
        Route(KV_EVENTS_PATH, internal.kv_events, methods=["GET"]),
        Route(TOKENIZER_PATH + "/{digest}", internal.tokenizer, methods=["GET"]),
        Route(CACHE_PATH, internal.cache, methods=["GET"]),
        Route(CACHE_PATH, internal.clear_cache, methods=["DELETE"]),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            RequestError: _refused,
            HTTPException: _not_routed,
            ClientDisconnect: _client_left,
            Exception: _failed,
        },
    )
    # A redirect would carry no request id and confuse clients that post.
    app.router.redirect_slashes = False
    return Edge(app, token=worker.settings.token)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    request.state.facts["error"] = error.code or error.type
    return error_response(error)


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
