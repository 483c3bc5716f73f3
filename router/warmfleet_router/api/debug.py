"""`/internal` and `/debug`: the fleet, the decisions and the settings, for those with the admin scope."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from warmfleet_contracts.cache.kv_events import LoadReport
from warmfleet_contracts.openai import RequestError
from warmfleet_router.access.api_keys import KeySource
from warmfleet_router.admission.admission import Admission
from warmfleet_router.admission.in_flight_limits import InFlightLimits
from warmfleet_router.discovery.base import Discovery, DiscoveryState
from warmfleet_router.error_responses import header_number
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.routing.decision_ring import MAX_DECISIONS, DecisionRing
from warmfleet_router.routing.leases import Leases
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.encoders import Encoders
from warmfleet_router.workers.fleet import Fleet, WorkerStatus

DEFAULT_DECISIONS: Final = 100


class FleetEndpoint:
    """`/internal/fleet`: every worker with its load, and what waits for them."""

    def __init__(
        self,
        *,
        router_id: str,
        policy: str,
        discovery: Discovery,
        fleet: Fleet,
        leases: Leases,
        breakers: Breakers,
        limits: InFlightLimits,
        admission: Admission,
        encoders: Encoders,
        metrics: RouterMetrics,
    ) -> None:
        """`policy` is that of workers whose deployment names none."""
        self._router_id = router_id
        self._policy = policy
        self._discovery = discovery
        self._fleet = fleet
        self._leases = leases
        self._breakers = breakers
        self._limits = limits
        self._admission = admission
        self._encoders = encoders
        self._metrics = metrics

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
                "router_id": self._router_id,
                "policy": self._policy,
                "discovery": _discovery(self._discovery.state),
                "models": self._fleet.models(),
                "ready_endpoints": len(ready),
                "totals": sums,
                "in_flight_requests": self._limits.in_flight.requests,
                "held": {
                    model: {"requests": requests, "tokens": tokens}
                    for model, (requests, tokens) in self._admission.held_by_model().items()
                },
                "asleep": list(filter(self._admission.waking.is_asleep, self._fleet.models())),
                "waking": {
                    model: {"requests": requests, "tokens": tokens}
                    for model, (requests, tokens) in self._admission.waking.held_by_model().items()
                },
                "tokens": {
                    model: {"prompt": count.prompt_tokens, "cached": count.cached_tokens}
                    for model, count in self._metrics.models.all().items()
                },
                "endpoints": [self._endpoint(view) for view in views],
            }
        )

    def _endpoint(self, view: WorkerStatus) -> dict[str, object]:
        uid, hello = view.endpoint.uid, view.hello
        unreported = self._leases.dispatches.unreported(uid, view.load.admitted_dispatches)
        return {
            "uid": uid,
            "name": view.endpoint.name,
            "deployment": view.endpoint.deployment or None,
            "policy": view.endpoint.policy or self._policy,
            "url": view.endpoint.url,
            "ready": view.ready,
            "unready_reason": view.unready_reason,
            "breaker": self._breakers.status(view.endpoint.uid, view.epoch).as_json(),
            "precise": view.precise,
            "served_names": list(view.served_names),
            "epoch": hello.epoch if hello is not None else None,
            "identity": hello.identity.hex() if hello is not None else None,
            "model_digest": (hello.model_digest or None) if hello is not None else None,
            "exact": (hello.exact if hello.exact is not msgspec.UNSET else None)
            if hello is not None
            else None,
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
            "start_seconds": view.start.by_name(),
            "load": shown_load(view.load),
        }


class DecisionEndpoints:
    """`/internal/decisions` and `/debug/decisions`: why each request went where it went."""

    def __init__(self, decisions: DecisionRing) -> None:
        self._decisions = decisions

    async def decisions(self, request: Request) -> Response:
        """The newest decisions first; `?limit=` is how many."""
        value = request.query_params.get("limit", str(DEFAULT_DECISIONS))
        limit = header_number(value)
        if limit is None or not 0 < limit <= MAX_DECISIONS:
            raise RequestError(
                f"limit: expected 1 to {MAX_DECISIONS}, got {value[:32]!r}",
                param="limit",
            )
        newest = self._decisions.newest(limit)
        return _json({"decisions": [decision.as_json() for decision in newest]})

    async def decision(self, request: Request) -> Response:
        """One decision, by its own id or by the request's."""
        decision = self._decisions.find(request.path_params["id"])
        if decision is None:
            raise RequestError(
                "no decision with this id is kept; only the newest are", status=404, code="not_found"
            )
        return _json(decision.as_json())


class ConfigEndpoint:
    """`/debug/config`: the settings in force; of a secret only whether there is one."""

    def __init__(self, settings: Mapping[str, object], keys: KeySource | None) -> None:
        """`settings` as they are shown."""
        self._settings = settings
        self._keys = keys

    async def config(self, request: Request) -> Response:
        """The settings, how many keys are in force, and why the key file is not."""
        del request
        keys = self._keys
        in_force = {"count": keys.key_count, "problem": keys.problem} if keys is not None else None
        return _json({"settings": self._settings, "keys": in_force})


def shown_load(load: LoadReport) -> dict[str, object]:
    """A worker's load, as `/internal/fleet` has it.

    What it reports per dispatch is for the router alone. It would be most of the answer, which has to stay
    within what the operator reads of one.
    """
    shown: dict[str, object] = msgspec.to_builtins(
        replace(load, admitted_dispatches={}, open_dispatches=msgspec.UNSET, plain_answers={})
    )
    del shown["admitted_dispatches"], shown["plain_answers"]
    return shown


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
