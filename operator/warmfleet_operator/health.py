"""What the operator says of itself: probes for the kubelet, metrics for the scraper, each on its own port."""

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def health_app(*, sick: Callable[[], str], unready: Callable[[], str], role: Callable[[], str]) -> Starlette:
    """`/livez` and `/readyz`. `sick` and `unready` say why not, in words; empty = all is well."""

    async def livez(request: Request) -> Response:
        del request
        return _answer(sick(), "alive")

    async def readyz(request: Request) -> Response:
        """A standby is ready, too: it takes over within seconds."""
        del request
        return _answer(unready(), role())

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz)])


def metrics_app(render: Callable[[], bytes]) -> Starlette:
    """`/metrics`."""

    async def metrics(request: Request) -> Response:
        del request
        return Response(render(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/metrics", metrics)])


def _answer(problem: str, status: str) -> Response:
    return JSONResponse({"status": problem or status}, 503 if problem else 200)
