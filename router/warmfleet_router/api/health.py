"""`/livez`, `/readyz`, `/health` and `/version`: whether the router runs, and whether it takes requests."""

import math
import time
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from warmfleet_router.discovery.base import Discovery, DiscoveryState
from warmfleet_router.workers.encoders import Encoders
from warmfleet_router.workers.fleet import Fleet, WorkerStatus
from warmfleet_runtime.version import package_version

LONGEST_WARM_UP_SECONDS: Final = 15.0
"""A router that replaces another one should know the workers first, but not wait for one that is silent."""


class HealthEndpoints:
    """Probes of Kubernetes and of load balancers."""

    def __init__(self, *, discovery: Discovery, fleet: Fleet, encoders: Encoders) -> None:
        self._discovery = discovery
        self._fleet = fleet
        self._encoders = encoders
        self._is_draining = False
        self._warmed_up = False
        self._warm_up_ends_at = math.inf

    @property
    def is_draining(self) -> bool:
        """Whether the router is about to end."""
        return self._is_draining

    def drain(self) -> None:
        """The router is about to end: it is not ready any more, and serves what still comes."""
        self._is_draining = True

    async def livez(self, request: Request) -> Response:
        """200 while the process answers."""
        del request
        return JSONResponse({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        """200 while a worker is ready; the first time only once the ready ones' caches are known, too.

        Later a worker whose cache is in doubt costs hits, which is no reason to refuse traffic. In a cluster
        a router is ready once it knows the fleet, of any size: it can answer that a model has no worker.
        """
        del request
        state = self._discovery.state
        if state.is_known:
            self._warm_up_ends_at = min(self._warm_up_ends_at, time.monotonic() + LONGEST_WARM_UP_SECONDS)
        reason = "draining" if self._is_draining else self._unready_reason(state)
        self._warmed_up = self._warmed_up or not reason
        if reason:
            return JSONResponse({"status": reason}, 503, {"retry-after": "1"})
        return JSONResponse({"status": "ready"})

    async def version(self, request: Request) -> Response:
        """The installed version."""
        del request
        return JSONResponse({"version": package_version()})

    def _unready_reason(self, state: DiscoveryState) -> str:
        if not state.is_known:
            return f"the fleet is not known yet: {state.problem}"
        views = self._fleet.workers()
        ready = [view for view in views if view.ready]
        if not self._fleet.knows_its_models:
            if not ready:
                return "no worker is ready"
            is_warm = all(self._is_known(view) for view in ready)
        else:
            is_warm = time.monotonic() >= self._warm_up_ends_at or all(map(self._is_settled, views))
        if not self._warmed_up and not is_warm:
            return "what the workers' caches hold is not known yet"
        return ""

    def _is_settled(self, view: WorkerStatus) -> bool:
        """Whether waiting changes nothing: it is known, or reported not ready, or does not answer."""
        if view.ready:
            return self._is_known(view)
        # After its hello alone it has not reported yet whether it is ready.
        return math.isfinite(view.report_age_seconds) or view.counts.failed > 0

    def _is_known(self, view: WorkerStatus) -> bool:
        tokenizer_known = view.hello is None or self._encoders.is_settled(view.hello.tokenizer_digest)
        # A worker that was turned load-only will not become precise by waiting.
        return tokenizer_known and (view.precise or view.counts.load_only > 0)
