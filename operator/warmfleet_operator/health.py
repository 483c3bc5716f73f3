"""The operator's own endpoints: probes for the kubelet and metrics for Prometheus, each on its own port."""

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def health_app(
    *,
    liveness_failure: Callable[[], str],
    readiness_failure: Callable[[], str],
    role: Callable[[], str],
) -> Starlette:
    """`/livez` and `/readyz`: 503 with the failure, or 200 if there is none (an empty text)."""

    async def livez(request: Request) -> Response:
        del request
        return _answer(liveness_failure(), "alive")

    async def readyz(request: Request) -> Response:
        """A standby is ready as well: it takes over within seconds."""
        del request
        return _answer(readiness_failure(), role())

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz)])


def metrics_app(render: Callable[[], bytes]) -> Starlette:
    """`/metrics`."""

    async def metrics(request: Request) -> Response:
        del request
        return Response(render(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/metrics", metrics)])


def _answer(failure: str, status: str) -> Response:
    return JSONResponse({"status": failure or status}, 503 if failure else 200)
