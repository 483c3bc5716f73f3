"""`/v1/chat/completions` and `/v1/completions`: from a body to a decision to the proxy."""

import secrets
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from warmfleet_contracts.cache.blocks import tenant_salt
from warmfleet_contracts.openai import (
    MAX_BODY_BYTES,
    ChatRequest,
    CompletionRequest,
    RequestError,
    decode_chat_request,
    decode_completion_request,
)
from warmfleet_router.admission.admission import Admission
from warmfleet_router.admission.queued_request import Turn
from warmfleet_router.api.context_length import require_fitting
from warmfleet_router.error_responses import header_number, no_worker_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.proxy.headers import request_headers, without_cache_salt
from warmfleet_router.proxy.proxy import Proxy, describe, outcome_of
from warmfleet_router.proxy.upstream_request import UpstreamRequest
from warmfleet_router.routing.decisions import Decision, DecisionRing, now_seconds
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.policies import agreed_policy
from warmfleet_router.routing.prompt_hashes import HEAD_BYTES, RequestPrompts
from warmfleet_router.settings import RouterSettings
from warmfleet_router.tenants import Tenant, cache_group, require_model, tenant_of
from warmfleet_router.workers.encoders import Encoders
from warmfleet_router.workers.fleet import Fleet, WorkerStatus
from warmfleet_runtime.http.body import decode_body, read_body

UNDECLARED_BODY_BYTES: Final = 64 * 1024
"""What a body without a declared length counts for until it has been read."""

Decoded = ChatRequest | CompletionRequest


class Generation:
    """ASGI endpoint for one path; reads the body, decides, and hands over to the proxy."""

    def __init__(
        self,
        decode: Callable[[bytes], Decoded],
        *,
        settings: RouterSettings,
        fleet: Fleet,
        leases: Leases,
        admission: Admission,
        encoders: Encoders,
        proxy: Proxy,
        decisions: DecisionRing,
        metrics: RouterMetrics,
    ) -> None:
        self._decode = decode
        self._settings = settings
        self._fleet = fleet
        self._leases = leases
        self._admission = admission
        self._encoders = encoders
        self._proxy = proxy
        self._decisions = decisions
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with self._admission.enter(tenant_of(request), _declared_bytes(request)) as turn:
            await self._handle(request, turn, send)

    async def _handle(self, request: Request, turn: Turn, send: Send) -> None:
        call, decision = await self._prepare(request, turn)
        # Stored before anything is dispatched: what it predicts cannot know what came of it.
        self._decisions.add(decision)
        self._metrics.on_start()
        try:
            try:
                self._admission.place(turn)
            except RequestError as error:
                decision.outcome = outcome_of(error)
                raise
            decision.decision_ms = round((self._leases.now() - call.started) * 1e3, 3)
            decision.held_behind, decision.held_because = turn.held_behind, turn.held_because
            await self._proxy.serve(call, decision, turn, request.receive, send)
        finally:
            if decision.outcome == "in flight":  # cancelled, by the server's own end
                decision.outcome = "failed"
            decision.total_ms = round((self._leases.now() - call.started) * 1e3, 3)
            self._decisions.ended(decision)
            self._metrics.on_end(call.model, decision.outcome)
            self._metrics.on_tenant_end(turn.tenant.name, decision.outcome)
            request.state.facts.update(
                model=call.model,
                stream=call.stream,
                outcome=decision.outcome,
                mode=decision.mode,
                **({"held_ms": decision.held_ms} if decision.held_ms is not None else {}),
                **describe(decision.attempts),
            )

    async def _prepare(self, request: Request, turn: Turn) -> tuple[UpstreamRequest, Decision]:
        """From the body to what is needed later; what was decoded is not kept while the request waits."""
        body = await read_body(request)
        started = self._leases.now()
        decoded = await decode_body(body, self._decode)
        self._metrics.on_ignored_fields(len(decoded.ignored_fields))
        require_model(turn.tenant, decoded.model)
        views = self._fleet.workers(decoded.model)
        if not views:
            raise model_not_found(decoded.model, self._fleet, turn.tenant)
        self._admission.ask(
            turn,
            decoded.model,
            body_bytes=len(body),
            sequences=_prompt_count(decoded) * decoded.n,
            priority=decoded.priority,
            output_limit_tokens=decoded.max_output_tokens,
        )
        call = await self._call(request, decoded, body, views, started)
        self._admission.measure(turn, call.prompts)
        policy = agreed_policy((view.endpoint.policy for view in views), self._settings.policy)
        return call, self._decision(request, turn, call, policy)

    async def _call(
        self, request: Request, decoded: Decoded, body: bytes, views: list[WorkerStatus], started: float
    ) -> UpstreamRequest:
        is_chat = isinstance(decoded, ChatRequest)
        hellos = [view.hello for view in views if view.hello is not None]
        digests = sorted({hello.tokenizer_digest for hello in hellos})
        group = cache_group(tenant_of(request), [view.endpoint.shared_cache for view in views])
        salt = tenant_salt(self._settings.salt_key, group, decoded.cache_salt)
        encoded = await self._encoders.encode(decoded, digests, salt)
        require_fitting(decoded, encoded, hellos)
        return UpstreamRequest(
            path=request.scope["path"],
            model=decoded.model,
            stream=decoded.stream,
            body=without_cache_salt(body) if decoded.cache_salt else body,
            headers=request_headers(request.headers.raw),
            prompts=RequestPrompts(
                encoded=encoded,
                salt=salt,
                body_bytes=len(body),
                head=b"" if encoded else _head(decoded),
                count=_prompt_count(decoded),
                choices=decoded.n,
                may_read_cache=decoded.may_read_cache,
            ),
            salt=salt,
            seed=secrets.randbits(63) if decoded.seed is None else None,
            started=started,
            silent_events=decoded.n if is_chat else 0,
        )

    def _decision(self, request: Request, turn: Turn, call: UpstreamRequest, policy: str) -> Decision:
        return Decision(
            id=request.state.decision_id,
            request_id=request.state.request_id,
            path=call.path,
            model=call.model,
            policy=policy,
            mode="load-only",
            prompt_tokens=call.prompts.token_count or call.prompts.estimated_tokens,
            prompts=call.prompts.count,
            decided_at=now_seconds(),
            decision_ms=0.0,
            attempts=[],
            tenant=turn.tenant.name,
            priority=turn.priority,
        )


DECODERS: Final[dict[str, Callable[[bytes], Decoded]]] = {
    "/v1/chat/completions": decode_chat_request,
    "/v1/completions": decode_completion_request,
}


def model_not_found(model: str, fleet: Fleet, tenant: Tenant) -> RequestError:
    """404, or 503 for one that has no worker now, and while it is not known yet what the fleet serves."""
    models = fleet.models()
    served = [name for name in models if tenant.may_call(name)]
    if model in models or not (models or fleet.knows_its_models):
        return no_worker_error(model[:256])
    return RequestError(
        f"model: {model[:64]!r} is not served here; served: {', '.join(served[:16])}",
        status=404,
        param="model",
        code="model_not_found",
    )


def _declared_bytes(request: Request) -> int:
    """What the body will take up, as far as the client says so; without a word it is taken for small."""
    declared = header_number(request.headers.get("content-length"))
    return UNDECLARED_BODY_BYTES if declared is None else min(declared, MAX_BODY_BYTES)


def _prompt_count(decoded: Decoded) -> int:
    return 1 if isinstance(decoded, ChatRequest) else len(decoded.prompts)


def _head(decoded: Decoded) -> bytes:
    """The beginning of the prompt's text, for routing while no tokenizer is known."""
    if isinstance(decoded, ChatRequest):
        return "\n".join(message.content[:HEAD_BYTES] for message in decoded.messages[:4]).encode(
            "utf-8", "replace"
        )
    first = decoded.prompts[0]
    text = first if isinstance(first, str) else repr(first[:HEAD_BYTES])
    return text.encode("utf-8", "replace")
