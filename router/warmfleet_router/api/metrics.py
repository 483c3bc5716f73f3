"""`/metrics`: what the router counted, and the gauges of the moment, in Prometheus' text format."""

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from warmfleet_router.admission.admission import Admission
from warmfleet_router.discovery.base import Discovery
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.leases import Leases
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.encoders import Encoders
from warmfleet_router.workers.fleet import Fleet


class MetricsEndpoint:
    """Reads the gauges where they are kept, at each scrape."""

    def __init__(
        self,
        metrics: RouterMetrics,
        *,
        discovery: Discovery,
        fleet: Fleet,
        leases: Leases,
        breakers: Breakers,
        admission: Admission,
        encoders: Encoders,
    ) -> None:
        self._metrics = metrics
        self._discovery = discovery
        self._fleet = fleet
        self._leases = leases
        self._breakers = breakers
        self._admission = admission
        self._encoders = encoders

    async def metrics(self, request: Request) -> Response:
        """One scrape."""
        del request
        views = self._fleet.workers()
        content = self._metrics.render(
            views,
            index_blocks=self._fleet.index.blocks,
            pending_blocks=self._leases.pending.blocks,
            tokenizers=self._encoders.count,
            ejected=sum(
                self._breakers.status(view.endpoint.uid, view.epoch).state == "open" for view in views
            ),
            held=self._admission.held_by_model(),
            waking=self._admission.waking.held_by_model(),
            models=self._fleet.models(),
            discovery=self._discovery.state,
        )
        return Response(content, media_type=CONTENT_TYPE_LATEST)
