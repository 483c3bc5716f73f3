"""All routes of a worker."""

from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from warmfleet_contracts.cache.prewarm import PREWARM_PATH
from warmfleet_contracts.cache.worker_api import CACHE_PATH, KV_EVENTS_PATH, TOKENIZER_PATH
from warmfleet_runtime.http.app import openai_app
from warmfleet_runtime.http.document import document_route
from warmfleet_runtime.http.edge import Edge
from warmfleet_worker.server.auth import RequestAuth
from warmfleet_worker.server.events import EventHub
from warmfleet_worker.server.internal import InternalEndpoints
from warmfleet_worker.server.openai_endpoints import OpenAIEndpoints
from warmfleet_worker.server.probes import Probes
from warmfleet_worker.server.state import WorkerState


class BusyMiddleware:
    """Keeps the event stream's busy heartbeat on from a request's arrival to the end of its response."""

    def __init__(self, app: ASGIApp, events: EventHub) -> None:
        self._app = app
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._events.busy():
            await self._app(scope, receive, send)


def build_app(worker: WorkerState) -> ASGIApp:
    """The worker as an ASGI application."""
    openai, internal, probes = OpenAIEndpoints(worker), InternalEndpoints(worker), Probes(worker)
    busy = [Middleware(BusyMiddleware, worker.events)]
    routes = [
        Route("/v1/chat/completions", openai.chat, methods=["POST"], middleware=busy),
        Route("/v1/completions", openai.completion, methods=["POST"], middleware=busy),
        Route("/v1/models", openai.models, methods=["GET"]),
        Route("/v1/models/{id:path}", openai.model, methods=["GET"]),
        Route("/tokenize", openai.tokenize, methods=["POST"]),
        Route("/detokenize", openai.detokenize, methods=["POST"]),
        Route("/version", probes.version, methods=["GET"]),
        Route("/health", probes.readyz, methods=["GET"]),
        Route("/livez", probes.livez, methods=["GET"]),
        Route("/readyz", probes.readyz, methods=["GET"]),
        Route("/metrics", probes.metrics, methods=["GET"]),
        document_route("worker"),
        Route(KV_EVENTS_PATH, internal.kv_events, methods=["GET"]),
        Route(TOKENIZER_PATH + "/{digest}", internal.tokenizer, methods=["GET"]),
        Route(PREWARM_PATH, internal.prewarm, methods=["POST"]),
        Route(CACHE_PATH, internal.cache, methods=["GET"]),
        Route(CACHE_PATH, internal.clear_cache, methods=["DELETE"]),
    ]
    auth = RequestAuth(worker.settings.uid, worker.settings.token)
    return Edge(openai_app(routes), refusal=auth.refusal)
