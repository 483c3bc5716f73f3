"""`/v1/chat/completions` and `/v1/completions`: from a body to a queued request to the proxy."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from warmfleet_contracts.cache.blocks import tenant_salt
from warmfleet_contracts.openai import (
    ChatRequest,
    CompletionRequest,
    RequestError,
    decode_chat_request,
    decode_completion_request,
)
from warmfleet_router.access.permission import Permission, Permissions
from warmfleet_router.admission.admission import Admission
from warmfleet_router.admission.in_flight_limits import InFlightLimits, InFlightTicket
from warmfleet_router.admission.queue_bounds import Amount
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.api.context_length import require_fitting
from warmfleet_router.api.models import model_not_found
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.proxy.headers import is_retry, request_headers, without_cache_salt
from warmfleet_router.proxy.proxy import Connection, Proxy, outcome_of
from warmfleet_router.proxy.upstream_request import UpstreamRequest
from warmfleet_router.routing.block_hash_memory import BlockHashMemory
from warmfleet_router.routing.decision_recorder import DecisionRecorder
from warmfleet_router.routing.decision_ring import DecisionRing
from warmfleet_router.routing.decisions import Decision, Outcome, RequestRecord, now_seconds
from warmfleet_router.routing.prompt_hashes import BYTES_PER_TOKEN, HEAD_BYTES, RequestPrompts
from warmfleet_router.tenants import cache_group, require_model, tenant_of
from warmfleet_router.workers.encoders import Encoders
from warmfleet_router.workers.fleet import Fleet, WorkerStatus
from warmfleet_runtime.http.body import decode_body, read_body

GROUP_SALTS: Final = 1024
"""Remembered, some 200 bytes each: an HMAC takes 40 us with a cold CPU cache."""

Decoded = ChatRequest | CompletionRequest


class Prepared(msgspec.Struct, frozen=True):
    """A request whose prompt is encoded: all that the proxy needs."""

    upstream: UpstreamRequest
    queued: QueuedRequest
    recorder: DecisionRecorder


class Asleep(msgspec.Struct, frozen=True):
    """A request that cannot be prepared now, because its model sleeps; only its body is kept."""

    stream: bool
    priority: int
    permission: Permission


class CompletionEndpoint:
    """ASGI endpoint for one path: reads the body, encodes the prompt and hands the request to the proxy."""

    def __init__(
        self,
        decode: Callable[[bytes], Decoded],
        *,
        permissions: Permissions,
        salt_key: bytes,
        policy_among: Callable[[Sequence[WorkerStatus]], str],
        fleet: Fleet,
        encoders: Encoders,
        hash_memory: BlockHashMemory,
        limits: InFlightLimits,
        admission: Admission,
        proxy: Proxy,
        decisions: DecisionRing,
        metrics: RouterMetrics,
        now: Callable[[], float],
    ) -> None:
        """`policy_among` names the policy by which workers are ranked."""
        self._decode = decode
        self._permissions = permissions
        self._salt_key = salt_key
        self._group_salts = lru_cache(GROUP_SALTS)(partial(tenant_salt, salt_key))
        self._policy_among = policy_among
        self._fleet = fleet
        self._encoders = encoders
        self._hash_memory = hash_memory
        self._limits = limits
        self._admission = admission
        self._proxy = proxy
        self._decisions = decisions
        self._metrics = metrics
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            RequestError: nothing has been sent; what the client gets.
        """
        request = Request(scope, receive)
        with self._limits.enter(tenant_of(request), is_retry=is_retry(request.headers)) as ticket:
            body = await read_body(request, ticket.receive)
            prepared = await self._prepare(request, ticket, body, self._now())
            self._metrics.on_start()
            if isinstance(prepared, Asleep):
                await self._serve_awake(request, ticket, body, prepared, send)
                return
            del body  # of which it has what is sent
            async with self._proxy.connection(
                scope, request.receive, send, stream=prepared.upstream.stream
            ) as connection:
                await self._serve(request, prepared, connection)

    async def _serve_awake(
        self, request: Request, ticket: InFlightTicket, body: bytes, asleep: Asleep, send: Send
    ) -> None:
        """Hold a request while its model sleeps; then it is served as any other."""
        async with self._proxy.connection(
            request.scope, request.receive, send, stream=asleep.stream
        ) as connection:
            prepared = await self._awake(request, ticket, body, asleep, connection)
            if prepared is not None:
                await self._serve(request, prepared, connection)

    async def _serve(self, request: Request, prepared: Prepared, connection: Connection) -> None:
        upstream_request, queued, recorder = prepared.upstream, prepared.queued, prepared.recorder
        self._decisions.add(recorder)
        try:
            await self._proxy.serve(upstream_request, queued, recorder, connection)
        finally:
            recorder.ended()
            self._decisions.ended(recorder)
            decision = recorder.decision
            self._metrics.on_end(queued.model, decision.outcome)
            self._metrics.on_tenant_end(queued.tenant.name, decision.outcome)
            request.state.facts.update(_logged(decision, stream=upstream_request.stream))

    async def _awake(
        self,
        request: Request,
        ticket: InFlightTicket,
        body: bytes,
        asleep: Asleep,
        connection: Connection,
    ) -> Prepared | None:
        """Hold a request until its model is awake and it may go on; None where its stream has been ended.

        Raises:
            RequestError: it may not wait, or waited too long; nothing has been sent.
        """
        model, tenant, since = asleep.permission.model, ticket.tenant, self._now()
        size = Amount(1, len(body), len(body) // BYTES_PER_TOKEN)
        waking = self._admission.waking
        outcome: Outcome | None = "failed"
        try:
            ticket.estimate_tokens(size.tokens)
            while True:
                async with waking.turn(model, tenant, priority=asleep.priority, size=size, since=since):
                    asleep.permission.require()
                    prepared = await self._prepare(request, ticket, body, self._now(), held=asleep.permission)
                if isinstance(prepared, Prepared):
                    outcome = None
                    return prepared
        except RequestError as error:
            outcome = outcome_of(error)
            if not connection.response.started:
                raise
            await connection.response.refuse(error)
            return None
        except asyncio.CancelledError:
            outcome = "client left" if connection.client.disconnected else outcome
            raise
        finally:
            held_ms = round((self._now() - since) * 1e3, 1)
            request.state.facts.update(model=model, stream=asleep.stream, asleep_ms=held_ms)
            if outcome is not None:
                self._metrics.on_end(model, outcome)
                self._metrics.on_tenant_end(tenant.name, outcome)
                request.state.facts.update(outcome=outcome)

    async def _prepare(
        self,
        request: Request,
        ticket: InFlightTicket,
        body: bytes,
        complete_at: float,
        *,
        held: Permission | None = None,
    ) -> Prepared | Asleep:
        """From the body to what is needed later; what was decoded is not kept while the request waits.

        `complete_at` is the clock time from which its time to first token counts. `held`: the permission of
        one that was held, which is let on now, also while others are held.
        """
        async with ticket.encoding_slot():
            decoded = await decode_body(body, self._decode)
            tenant = tenant_of(request)
            require_model(tenant, decoded.model)
            # Of the name's first owner, also if it changes between what is awaited here.
            permission = held or self._permissions.of(request, decoded.model)
            if self._admission.waking.holds(decoded.model, was_held=held is not None):
                return Asleep(decoded.stream, tenant.priority(decoded.priority), permission)
            return await self._encoded(permission, ticket, decoded, body, complete_at)

    async def _encoded(
        self,
        permission: Permission,
        ticket: InFlightTicket,
        decoded: Decoded,
        body: bytes,
        body_read_at: float,
    ) -> Prepared:
        request = permission.request
        tenant = tenant_of(request)
        self._metrics.on_ignored_fields(len(decoded.ignored_fields))
        workers = self._fleet.workers(decoded.model)
        if not workers:
            raise model_not_found(decoded.model, self._fleet, tenant)
        priority, sequences = tenant.priority(decoded.priority), _prompt_count(decoded) * decoded.n
        answer_tokens = self._admission.reserve(
            ticket,
            decoded.model,
            priority=priority,
            sequences=sequences,
            output_limit_tokens=decoded.max_output_tokens,
        )
        group = cache_group(tenant, [worker.endpoint.shared_cache for worker in workers])
        salt = self._salt(group, decoded.cache_salt)
        prompts = await self._encode(decoded, workers, salt, len(body))
        prompt_tokens = prompts.token_count or prompts.estimated_tokens
        guessed_tokens = 0 if prompts.token_count else prompt_tokens
        if decoded.max_output_tokens is None:
            guessed_tokens += answer_tokens
        ticket.add_tokens(prompt_tokens + answer_tokens, prompts.size_bytes, guessed_tokens=guessed_tokens)
        queued = QueuedRequest(
            model=decoded.model,
            tenant=tenant,
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            body_bytes=len(body),
            sequences=sequences,
            priority=priority,
            output_limit_tokens=decoded.max_output_tokens,
            arrived_at=ticket.entered_at,
            body_read_at=body_read_at,
            is_retry=ticket.is_retry,
        )
        record = _request_record(request, queued, self._policy_among(workers))
        recorder = DecisionRecorder(record, since=body_read_at, now=self._now)
        upstream = _upstream_request(request, ticket, decoded, body, salt, permission=permission)
        return Prepared(upstream, queued, recorder)

    def _salt(self, group: str, request_salt: str) -> bytes:
        """The salt of a request's blocks; one that clients choose is not remembered."""
        return tenant_salt(self._salt_key, group, request_salt) if request_salt else self._group_salts(group)

    async def _encode(
        self, decoded: Decoded, workers: Sequence[WorkerStatus], salt: bytes, body_bytes: int
    ) -> RequestPrompts:
        hellos = [worker.hello for worker in workers if worker.hello is not None]
        limits: dict[str, int] = {}
        for hello in hellos:
            known = limits.get(hello.tokenizer_digest, 0)
            limits[hello.tokenizer_digest] = max(known, hello.max_model_length_tokens)
        prompts = await self._encoders.encode(decoded, limits, salt)
        require_fitting(decoded, prompts, hellos)
        encoded = prompts.token_ids
        return RequestPrompts(
            encoded=encoded,
            salt=salt,
            hash_memory=self._hash_memory,
            body_bytes=body_bytes,
            head=b"" if encoded else _head(decoded),
            count=_prompt_count(decoded),
            choices=decoded.n,
            may_read_cache=decoded.may_read_cache,
        )


DECODERS: Final[dict[str, Callable[[bytes], Decoded]]] = {
    "/v1/chat/completions": decode_chat_request,
    "/v1/completions": decode_completion_request,
}


def _upstream_request(
    request: Request,
    ticket: InFlightTicket,
    decoded: Decoded,
    body: bytes,
    salt: bytes,
    *,
    permission: Permission,
) -> UpstreamRequest:
    return UpstreamRequest(
        path=request.scope["path"],
        stream=decoded.stream,
        body=without_cache_salt(body) if decoded.cache_salt else body,
        headers=request_headers(request.headers.raw),
        permission=permission,
        ticket=ticket,
        salt=salt,
        seed=secrets.randbits(63) if decoded.seed is None else None,
        role_events=decoded.n if isinstance(decoded, ChatRequest) else 0,
    )


def _request_record(request: Request, queued: QueuedRequest, policy: str) -> RequestRecord:
    return RequestRecord(
        id=request.state.decision_id,
        request_id=request.state.request_id,
        path=request.scope["path"],
        model=queued.model,
        policy=policy,
        prompt_tokens=queued.prompt_tokens,
        prompts=queued.prompts.count,
        decided_at=now_seconds(),
        tenant=queued.tenant.name,
        priority=queued.priority,
    )


def _logged(decision: Decision, *, stream: bool) -> dict[str, object]:
    """Fields of a request's log line."""
    fields: dict[str, object] = {
        "model": decision.request.model,
        "stream": stream,
        "outcome": decision.outcome,
        "mode": decision.mode,
    }
    if decision.held_ms is not None:
        fields["held_ms"] = decision.held_ms
    if decision.attempts:
        last = decision.attempts[-1]
        fields |= {
            "endpoint": last.choice.endpoint,
            "predicted_cached_tokens": last.choice.predicted_cached_tokens,
            "actual_cached_tokens": last.answer.cached_tokens if last.answer is not None else None,
            "tries": len(decision.attempts),
        }
    return fields


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
