"""Builds a router from its settings: all parts, all routes."""

import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
from starlette.routing import Route
from starlette.types import ASGIApp

from warmfleet_contracts.cache.worker_api import DECISION_HEADER
from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.admission import Admission
from warmfleet_router.api.api_keys import KeySource
from warmfleet_router.api.authentication import Authentication
from warmfleet_router.api.completions import DECODERS, Generation
from warmfleet_router.api.cors import CrossOrigin
from warmfleet_router.api.inspection import Inspection
from warmfleet_router.api.tokenize import TokenEndpoints
from warmfleet_router.discovery.base import Discovery, StaticDiscovery
from warmfleet_router.discovery.kubernetes import KubernetesDiscovery
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.proxy.exchange import Exchanges
from warmfleet_router.proxy.proxy import Proxy
from warmfleet_router.proxy.retry_budget import RetryBudget
from warmfleet_router.routing.decisions import DecisionRing
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.picker import Picker
from warmfleet_router.routing.slow_workers import SlowWorkerDetector, SlowWorkerEjector
from warmfleet_router.settings import RouterSettings
from warmfleet_router.workers.breakers import Breakers, Cause
from warmfleet_router.workers.encoders import Encoders
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.liveness import LivenessWatch
from warmfleet_router.workers.prefix_index import PrefixIndex
from warmfleet_router.workers.upstream import Upstream
from warmfleet_runtime.http.app import openai_app
from warmfleet_runtime.http.document import document_route
from warmfleet_runtime.http.edge import Edge

_log = structlog.get_logger("warmfleet.router")


class Part(Protocol):
    """Something that works between requests."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Router:
    """All parts of one router. `running` starts what lives between requests."""

    settings: RouterSettings
    parts: tuple[Part, ...]
    """What lives between requests, in the order of its start."""
    discovery: Discovery
    fleet: Fleet
    leases: Leases
    breakers: Breakers
    picker: Picker
    admission: Admission
    encoders: Encoders
    decisions: DecisionRing
    metrics: RouterMetrics
    inspection: Inspection
    app: ASGIApp

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Follow the fleet while the block lasts."""
        async with contextlib.AsyncExitStack() as stack:
            for part in self.parts:
                await part.start()
                stack.push_async_callback(part.stop)
            yield


def build_router(
    settings: RouterSettings,
    discovery: Discovery | None = None,
    *,
    now: Callable[[], float] = time.monotonic,
) -> Router:
    """A router that has not been started; `discovery` replaces the settings' list of endpoints.

    `now` is the clock by which waits, rates and ejections are measured, in seconds.
    """
    # Counters start at 1 in each life, and workers remember the highest per id: an id lives once.
    # Workers keep 64 characters of it. Of a pod's name the end tells it from others.
    life_id = f"{settings.router_id[-48:]}-{secrets.token_hex(4)}"

    def on_capacity() -> None:
        admission.wake()

    leases = Leases(life_id, now, on_capacity=on_capacity)
    index = PrefixIndex()
    metrics = RouterMetrics()
    keys = KeySource(settings.keys, settings.keys_path, metrics) if settings.keys is not None else None
    slow_workers = SlowWorkerDetector(settings.outliers)

    def on_ejected(uid: str, cause: Cause, reason: str, seconds: float) -> None:
        metrics.on_ejected(cause.value)
        _log.warning("worker ejected", uid=uid, cause=cause.value, reason=reason, seconds=round(seconds, 1))

    breakers = Breakers(settings.breaker, now=leases.now, on_ejected=on_ejected)

    def on_hung(uid: str) -> None:
        view = fleet.worker(uid)
        if view is not None:
            breakers.eject(uid, view.epoch, Cause.SILENT, "neither answers nor sends events")

    def worker_silence(uid: str) -> float:
        return fleet.seconds_since_last_message(uid)

    silence = LivenessWatch(settings.silence, worker_silence=worker_silence, on_hung=on_hung)
    upstream = Upstream(silence=silence)

    def on_gone(uid: str) -> None:
        for kept in (leases, breakers, slow_workers):
            kept.forget(uid)

    if discovery is None:
        discovery = (
            KubernetesDiscovery(settings.cluster, settings.last_good_path)
            if settings.cluster is not None
            else StaticDiscovery(settings.endpoints)
        )
    fleet = Fleet(
        discovery,
        upstream,
        index=index,
        on_frame=leases.frame_arrived,
        on_change=on_capacity,
        on_gone=on_gone,
    )
    picker = Picker(index, leases, settings.policy, breakers)
    admission = Admission(
        settings.admission,
        views=fleet.workers,
        picker=picker,
        leases=leases,
        metrics=metrics,
    )
    encoders = Encoders(settings.tokenizers_path, upstream, fleet.workers)
    decisions = DecisionRing(settings.ring_size)
    exchanges = Exchanges(
        fleet=fleet,
        predictor=picker.predictor,
        leases=leases,
        upstream=upstream,
        breakers=breakers,
        slow_workers=SlowWorkerEjector(slow_workers, breakers, leases.now),
        metrics=metrics,
        router_id=life_id,
    )
    proxy = Proxy(
        exchanges,
        admission=admission,
        retries=RetryBudget(settings.retry_budget, leases.now),
        metrics=metrics,
        write_seconds=settings.write_seconds,
        ping_seconds=settings.admission.ping_seconds,
    )
    inspection = Inspection(
        discovery=discovery,
        fleet=fleet,
        leases=leases,
        breakers=breakers,
        admission=admission,
        encoders=encoders,
        decisions=decisions,
        metrics=metrics,
        settings=settings,
        keys=keys,
    )
    tokens = TokenEndpoints(fleet, upstream)
    generation = [
        Route(
            path,
            Generation(
                decode,
                settings=settings,
                fleet=fleet,
                leases=leases,
                admission=admission,
                encoders=encoders,
                proxy=proxy,
                decisions=decisions,
                metrics=metrics,
            ),
            methods=["POST"],
        )
        for path, decode in DECODERS.items()
    ]
    routes = [
        *generation,
        Route("/v1/models", inspection.models, methods=["GET"]),
        Route("/v1/models/{id:path}", inspection.model, methods=["GET"]),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        Route("/version", inspection.version, methods=["GET"]),
        Route("/health", inspection.readyz, methods=["GET"]),
        Route("/livez", inspection.livez, methods=["GET"]),
        Route("/readyz", inspection.readyz, methods=["GET"]),
        Route("/metrics", inspection.metrics, methods=["GET"]),
        document_route("router"),
        Route("/internal/fleet", inspection.fleet, methods=["GET"]),
        Route("/internal/decisions", inspection.decisions, methods=["GET"]),
        Route("/debug/config", inspection.config, methods=["GET"]),
        Route("/debug/decisions/{id}", inspection.decision, methods=["GET"]),
    ]

    def on_refused(error: RequestError) -> None:
        metrics.on_refused(error.status)

    authentication = Authentication(
        keys,
        operator_token=settings.operator_token,
        open_metrics=settings.open_metrics,
        on_refused=on_refused,
    )
    edge = Edge(
        openai_app(routes, on_refused=on_refused),
        refusal=authentication.refusal,
        drawn_ids={"decision_id": DECISION_HEADER},
    )
    return Router(
        settings=settings,
        parts=(upstream, silence, fleet, encoders, *([keys] if keys is not None else [])),
        discovery=discovery,
        fleet=fleet,
        leases=leases,
        breakers=breakers,
        picker=picker,
        admission=admission,
        encoders=encoders,
        decisions=decisions,
        metrics=metrics,
        inspection=inspection,
        app=CrossOrigin(edge, settings.cors_origins) if settings.cors_origins else edge,
    )
