"""All routes of one router, behind authentication."""

from starlette.routing import Route

from warmfleet_contracts.cache.fleet_totals import FLEET_TOTALS_PATH
from warmfleet_contracts.cache.handover import HANDOVER_PATH
from warmfleet_contracts.cache.worker_api import DECISION_HEADER
from warmfleet_contracts.openai import RequestError
from warmfleet_router.access.api_keys import KeySource
from warmfleet_router.access.authentication import Authentication
from warmfleet_router.access.permission import Permissions
from warmfleet_router.admission.admission import Admission
from warmfleet_router.admission.in_flight_limits import InFlightLimits
from warmfleet_router.api.completions import DECODERS, CompletionEndpoint
from warmfleet_router.api.cors import CrossOrigin
from warmfleet_router.api.debug import ConfigEndpoint, DecisionEndpoints, FleetEndpoint
from warmfleet_router.api.fleet_totals import FleetTotalsEndpoint
from warmfleet_router.api.handover import HandoverEndpoint
from warmfleet_router.api.health import HealthEndpoints
from warmfleet_router.api.metrics import MetricsEndpoint
from warmfleet_router.api.models import ModelEndpoints
from warmfleet_router.api.tokenize import TOKEN_DECODERS, TokenEndpoint
from warmfleet_router.prewarm.handover import Handovers
from warmfleet_router.rooms import ApiRoom, Common, ProxyRoom, RoutingRoom, WorkersRoom
from warmfleet_router.settings import effective_settings
from warmfleet_runtime.http.app import openai_app
from warmfleet_runtime.http.document import document_route
from warmfleet_runtime.http.edge import Edge


def build_api(
    common: Common,
    workers: WorkersRoom,
    routing: RoutingRoom,
    *,
    limits: InFlightLimits,
    admission: Admission,
    proxies: ProxyRoom,
    handovers: Handovers,
) -> ApiRoom:
    """All routes, behind authentication."""
    settings, metrics = common.settings, common.metrics
    keys = KeySource(settings.keys, settings.keys_path, metrics) if settings.keys is not None else None
    health = HealthEndpoints(discovery=workers.discovery, fleet=workers.fleet, encoders=workers.encoders)

    def on_refused(error: RequestError) -> None:
        metrics.on_refused(error.status)

    authentication = Authentication(
        keys,
        operator_token=settings.operator_token,
        open_metrics=settings.open_metrics,
        on_refused=on_refused,
    )
    routes = [
        *_inference_routes(
            common,
            workers,
            routing,
            limits=limits,
            admission=admission,
            proxies=proxies,
            authentication=authentication,
        ),
        Route("/version", health.version, methods=["GET"]),
        Route("/health", health.readyz, methods=["GET"]),
        Route("/livez", health.livez, methods=["GET"]),
        Route("/readyz", health.readyz, methods=["GET"]),
        document_route("router"),
        *_observation_routes(common, workers, routing, limits=limits, admission=admission, keys=keys),
        Route(HANDOVER_PATH, HandoverEndpoint(handovers.hand_over).hand_over, methods=["POST"]),
    ]
    edge = Edge(
        openai_app(routes, on_refused=on_refused),
        refusal=authentication.refusal,
        drawn_ids={"decision_id": DECISION_HEADER},
    )
    return ApiRoom(
        health=health,
        keys=keys,
        app=CrossOrigin(edge, settings.cors_origins) if settings.cors_origins else edge,
    )


def _inference_routes(
    common: Common,
    workers: WorkersRoom,
    routing: RoutingRoom,
    *,
    limits: InFlightLimits,
    admission: Admission,
    proxies: ProxyRoom,
    authentication: Authentication,
) -> list[Route]:
    settings = common.settings
    models = ModelEndpoints(workers.fleet)
    permissions = Permissions(authentication.check, workers.fleet.owner)
    tokens = [
        Route(
            path,
            TokenEndpoint(
                decode, permissions=permissions, fleet=workers.fleet, limits=limits, proxy=proxies.texts
            ),
            methods=["POST"],
        )
        for path, decode in TOKEN_DECODERS.items()
    ]
    completions = [
        Route(
            path,
            CompletionEndpoint(
                decode,
                permissions=permissions,
                salt_key=settings.salt_key,
                policy_among=routing.picker.policy_among,
                fleet=workers.fleet,
                encoders=workers.encoders,
                hash_memory=routing.hash_memory,
                limits=limits,
                admission=admission,
                proxy=proxies.generations,
                decisions=routing.decisions,
                metrics=common.metrics,
                now=common.now,
            ),
            methods=["POST"],
        )
        for path, decode in DECODERS.items()
    ]
    return [
        *completions,
        Route("/v1/models", models.models, methods=["GET"]),
        Route("/v1/models/{id:path}", models.model, methods=["GET"]),
        *tokens,
    ]


def _observation_routes(
    common: Common,
    workers: WorkersRoom,
    routing: RoutingRoom,
    *,
    limits: InFlightLimits,
    admission: Admission,
    keys: KeySource | None,
) -> list[Route]:
    settings = common.settings
    exposition = MetricsEndpoint(
        common.metrics,
        discovery=workers.discovery,
        fleet=workers.fleet,
        leases=routing.leases,
        breakers=workers.breakers,
        admission=admission,
        encoders=workers.encoders,
    )
    fleet = FleetEndpoint(
        router_id=settings.router_id,
        policy=settings.policy,
        discovery=workers.discovery,
        fleet=workers.fleet,
        leases=routing.leases,
        breakers=workers.breakers,
        limits=limits,
        admission=admission,
        encoders=workers.encoders,
        metrics=common.metrics,
    )
    totals = FleetTotalsEndpoint(
        life_id=common.life_id,
        fleet=workers.fleet,
        waits=admission.waits,
        counts=common.metrics.models,
    )
    decisions = DecisionEndpoints(routing.decisions)
    config = ConfigEndpoint(effective_settings(settings), keys)
    return [
        Route("/metrics", exposition.metrics, methods=["GET"]),
        Route("/internal/fleet", fleet.fleet, methods=["GET"]),
        Route(FLEET_TOTALS_PATH, totals.totals, methods=["GET"]),
        Route("/internal/decisions", decisions.decisions, methods=["GET"]),
        Route("/debug/config", config.config, methods=["GET"]),
        Route("/debug/decisions/{id}", decisions.decision, methods=["GET"]),
    ]
