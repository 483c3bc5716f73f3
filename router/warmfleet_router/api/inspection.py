"""What the router says of itself and the fleet: probes, metrics, models, decisions."""

import math
import time
from typing import Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.admission import Admission
from warmfleet_router.api.api_keys import KeySource
from warmfleet_router.api.completions import model_not_found
from warmfleet_router.discovery.base import Discovery, DiscoveryState
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.decisions import DecisionRing
from warmfleet_router.routing.leases import Leases
from warmfleet_router.settings import RouterSettings, effective_settings
from warmfleet_router.tenants import require_model, tenant_of
from warmfleet_router.workers.breakers import Breakers, BreakerStatus
from warmfleet_router.workers.encoders import Encoders
from warmfleet_router.workers.fleet import Fleet, WorkerStatus
from warmfleet_runtime.version import package_version

DEFAULT_DECISIONS: Final = 100
MAX_DECISIONS: Final = 4096
LONGEST_WARM_UP_SECONDS: Final = 15.0
"""A router that replaces another one should know the workers first, but not wait for one that is silent."""


class Inspection:
    """Read-only endpoints."""

    def __init__(
        self,
        *,
        discovery: Discovery,
        fleet: Fleet,
        leases: Leases,
        breakers: Breakers,
        admission: Admission,
        encoders: Encoders,
        decisions: DecisionRing,
        metrics: RouterMetrics,
        settings: RouterSettings,
        keys: KeySource | None,
    ) -> None:
        self._discovery = discovery
        self._fleet = fleet
        self._leases = leases
        self._breakers = breakers
        self._admission = admission
        self._encoders = encoders
        self._decisions = decisions
        self._metrics = metrics
        self._settings = settings
        self._keys = keys
        self.draining = False
        """Set when the router is about to end: it is not ready any more, and serves what still comes."""
        self._started_seconds = int(time.time())
        self._warmed_up = False
        self._known_since: float | None = None

    async def livez(self, request: Request) -> Response:
        del request
        return JSONResponse({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        """200 while a worker is ready; the first time only once the ready ones' caches are known, too.

        Later a worker whose cache is in doubt costs hits, which is no reason to refuse traffic. In a cluster
        a router is ready once it knows the fleet, whatever its size: it can say what there is not.
        """
        del request
        reason = self._unready_reason()
        if reason:
            return JSONResponse({"status": reason}, 503, {"retry-after": "1"})
        return JSONResponse({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        del request
        views = self._fleet.workers()
        content = self._metrics.render(
            views,
            index_blocks=self._fleet.index.blocks,
            pending_blocks=self._leases.pending.blocks,
            tokenizers=self._encoders.count,
            ejected=sum(self._breaker(view).state == "open" for view in views),
            held=self._admission.held_by_model(),
            discovery=self._discovery.state,
        )
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    async def version(self, request: Request) -> Response:
        del request
        return JSONResponse({"version": package_version()})

    async def models(self, request: Request) -> Response:
        """What the caller's key may call."""
        tenant = tenant_of(request)
        names = [name for name in self._fleet.models() if tenant.may_call(name)]
        return JSONResponse({"object": "list", "data": [self._model(name) for name in names]})

    async def model(self, request: Request) -> Response:
        name, tenant = request.path_params["id"], tenant_of(request)
        require_model(tenant, name)
        if name not in self._fleet.models():
            raise model_not_found(name, self._fleet, tenant)
        return JSONResponse(self._model(name))

    async def fleet(self, request: Request) -> Response:
        """Every endpoint with its load, and the sums over those that are ready."""
        del request
        views = self._fleet.workers()
        ready = [view for view in views if view.ready]
        fields = ("running_sequences", "waiting_sequences", "queued_uncached_tokens", "total_blocks")
        sums = {
            field: sum(getattr(view.load, field) for view in ready)
            for field in (*fields, "pinned_blocks", "cached_blocks", "max_running_sequences")
        }
        return _json(
            {
                "router_id": self._settings.router_id,
                "policy": self._settings.policy,
                "discovery": _discovery(self._discovery.state),
                "models": self._fleet.models(),
                "ready_endpoints": len(ready),
                "totals": sums,
                "in_flight_requests": self._admission.door.in_flight.requests,
                "held": {
                    model: {"requests": requests, "tokens": tokens}
                    for model, (requests, tokens) in self._admission.held_by_model().items()
                },
                "tokens": {
                    model: tokens._asdict() for model, tokens in self._metrics.answered_tokens.items()
                },
                "endpoints": [self._endpoint(view) for view in views],
            }
        )

    async def config(self, request: Request) -> Response:
        """The settings in force; of a secret only whether there is one."""
        del request
        keys = self._keys
        in_force = {"count": keys.key_count, "problem": keys.problem} if keys is not None else None
        return _json({"settings": effective_settings(self._settings), "keys": in_force})

    async def decisions(self, request: Request) -> Response:
        """The newest decisions first; `?limit=` says how many."""
        value = request.query_params.get("limit", str(DEFAULT_DECISIONS))
        if not (value.isascii() and value.isdecimal() and 0 < int(value[:9]) <= MAX_DECISIONS):
            raise RequestError(
                f"limit: expected 1 to {MAX_DECISIONS}, got {value[:32]!r}",
                param="limit",
            )
        newest = self._decisions.newest(int(value))
        return _json({"decisions": [decision.as_json() for decision in newest]})

    async def decision(self, request: Request) -> Response:
        """One decision, by its own id or by the request's."""
        decision = self._decisions.find(request.path_params["id"])
        if decision is None:
            raise RequestError(
                "no decision with this id is kept; only the newest are", status=404, code="not_found"
            )
        return _json(decision.as_json())

    def _unready_reason(self) -> str:
        if self.draining:
            return "draining"
        state = self._discovery.state
        if not state.is_known:
            return f"the fleet is not known yet: {state.problem}"
        views = self._fleet.workers()
        ready = [view for view in views if view.ready]
        if not self._fleet.knows_its_models:
            if not ready:
                return "no worker is ready"
            is_warm = all(self._is_known(view) for view in ready)
        else:
            is_warm = all(self._is_settled(view) for view in views) or self._is_warm_up_over()
        if not self._warmed_up and not is_warm:
            return "what the workers' caches hold is not known yet"
        self._warmed_up = True
        return ""

    def _is_settled(self, view: WorkerStatus) -> bool:
        """Whether waiting changes nothing: it is known, or said that it is not ready, or does not answer."""
        if view.ready:
            return self._is_known(view)
        # With its hello alone it has not said yet whether it is ready.
        return math.isfinite(view.report_age_seconds) or view.counts.failed > 0

    def _is_warm_up_over(self) -> bool:
        now = time.monotonic()
        if self._known_since is None:
            self._known_since = now
        return now - self._known_since >= LONGEST_WARM_UP_SECONDS

    def _is_known(self, view: WorkerStatus) -> bool:
        tokenizer_known = view.hello is None or self._encoders.is_settled(view.hello.tokenizer_digest)
        # A worker that was turned load-only will not become precise by waiting.
        return tokenizer_known and (view.precise or view.counts.load_only > 0)

    def _breaker(self, view: WorkerStatus) -> BreakerStatus:
        return self._breakers.status(view.endpoint.uid, view.epoch)

    def _endpoint(self, view: WorkerStatus) -> dict[str, object]:
        uid, hello = view.endpoint.uid, view.hello
        unreported = self._leases.dispatches.unreported(uid, view.load.admitted_dispatches)
        return {
            "uid": uid,
            "name": view.endpoint.name,
            "deployment": view.endpoint.deployment or None,
            "policy": view.endpoint.policy or self._settings.policy,
            "url": view.endpoint.url,
            "ready": view.ready,
            "unready_reason": view.unready_reason,
            "breaker": self._breaker(view).as_json(),
            "precise": view.precise,
            "served_names": list(view.served_names),
            "epoch": hello.epoch if hello is not None else None,
            "identity": hello.identity.hex() if hello is not None else None,
            "model_digest": (hello.model_digest or None) if hello is not None else None,
            "tokenizer_known": hello is not None and self._encoders.known(hello.tokenizer_digest) is not None,
            "block_size_tokens": hello.block_size_tokens if hello is not None else None,
            "max_model_length_tokens": hello.max_model_length_tokens if hello is not None else None,
            "resident_blocks": view.resident_blocks,
            "report_age_seconds": (
                round(view.report_age_seconds, 3) if view.report_age_seconds != float("inf") else None
            ),
            "open_dispatches": self._leases.dispatches.open_count(uid),
            "unreported_tokens": unreported.tokens,
            "unreported_seats": unreported.seats,
            "load": msgspec.to_builtins(view.load),
        }

    def _model(self, name: str) -> dict[str, object]:
        lengths = [
            view.hello.max_model_length_tokens for view in self._fleet.workers(name) if view.hello is not None
        ]
        return {
            "id": name,
            "object": "model",
            "created": self._started_seconds,
            "owned_by": "warmfleet",
            "root": name,  # vLLM's field; its benchmark client takes it for the model's name
            # The least of all replicas: what is within it fits wherever the request goes.
            "max_model_len": min(lengths, default=None),
        }


def _discovery(state: DiscoveryState) -> dict[str, object]:
    age = state.age_seconds
    return {
        "known": state.is_known,
        "problem": state.problem,
        "age_seconds": round(age, 3) if age != float("inf") else None,
        "errors": state.errors,
    }


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
