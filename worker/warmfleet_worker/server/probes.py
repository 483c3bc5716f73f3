"""Endpoints for probes and metrics."""

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from warmfleet_contracts.openai import RequestError
from warmfleet_runtime.version import package_version
from warmfleet_worker.server.state import WorkerState


class Probes:
    """Live: the step watchdog reports no stall. Ready: a request is to come."""

    def __init__(self, worker: WorkerState) -> None:
        self._worker = worker

    async def livez(self, request: Request) -> Response:
        del request
        if self._worker.alive:
            return JSONResponse({"status": "alive"})
        return JSONResponse({"status": "the engine has work and reports no step"}, 503)

    async def readyz(self, request: Request) -> Response:
        del request
        try:
            self._worker.ready_engine()
        except RequestError as error:
            return JSONResponse({"status": error.message}, 503, error.headers())
        if not self._worker.warmup.is_open:
            return JSONResponse({"status": "prefixes are computed ahead of requests"}, 503)
        return JSONResponse({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        del request
        self._worker.metrics.on_start(self._worker.start.phases)
        self._worker.metrics.on_subscribers(self._worker.events.subscribers)
        engine = self._worker.engine
        if engine.ready is None or not engine.ready.own_metrics:
            text = self._worker.metrics.render()
        else:
            text = self._worker.metrics.render_own() + await engine.read_metrics()
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def version(self, request: Request) -> Response:
        del request
        return JSONResponse({"version": package_version()})
