"""From a routed call to an answer: dispatch, stream through, retry, cancel.

Bodies are not parsed. A stream is cut only at the blank lines between its events, so that a worker's death
never leaves half an event in front of the error object. A plain answer is read whole (bounded) before
anything is sent: until then a dead worker costs the client time and nothing else.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from starlette.types import Receive, Send

from warmfleet_contracts.openai import RequestError
from warmfleet_contracts.worker_api import (
    CACHED_TOKENS_HEADER,
    DISPATCH_HEADER,
    LAST_BLOCK_HEADER,
    POSITION_HEADER,
    PROMPT_TOKENS_HEADER,
    REQUEST_ID_HEADER,
    ROUTER_ID_HEADER,
    SALT_HEADER,
    SEED_HEADER,
)
from warmfleet_router.decisions import Attempt, Decision, attempt_of, difference_of
from warmfleet_router.endpoints import Fleet
from warmfleet_router.forwarded import PASSED_BACK
from warmfleet_router.leases import Lease, Leases
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.picker import Choice, Picker
from warmfleet_router.request_prompts import RequestPrompts
from warmfleet_router.upstream import (
    Headers,
    Upstream,
    UpstreamBrokenError,
    UpstreamError,
    UpstreamResponse,
    UpstreamTooLargeError,
    UpstreamUnreachableError,
)

MAX_TRIES: Final = 3
MAX_PLAIN_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_EVENT_BYTES: Final = 1024 * 1024
"""An event longer than this is passed on in pieces."""
RETRIED_STATUSES: Final = frozenset({429, 502, 503})
"""A worker that is overloaded, draining or without its engine has computed nothing for this request."""
RETRY_AFTER_SECONDS: Final = 1

_log = structlog.get_logger("warmfleet.router.proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One client request, decoded and ready to be dispatched."""

    path: str
    model: str
    stream: bool
    body: bytes
    headers: Headers
    """The client's, without those that end at the router."""
    prompts: RequestPrompts
    salt: bytes
    seed: int | None
    """Drawn by the router for a request without one; None where the body has its own."""
    started: float
    """On the leases' clock, when the body was complete."""
    silent_events: int = 0
    """Events at a stream's start that say nothing of the prefill: chat sends the role on admission."""


class _TryElsewhereError(Exception):
    """This worker did not answer, and nothing was sent to the client yet."""

    def __init__(self, reason: str, refusal: RequestError | None = None) -> None:
        super().__init__(reason)
        self.refusal = refusal


class _ClientStalledError(Exception):
    """The client did not take a write in time."""


class Proxy:
    """Dispatches calls to the workers that the picker chooses."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        picker: Picker,
        leases: Leases,
        upstream: Upstream,
        metrics: RouterMetrics,
        router_id: str,
        write_seconds: float = 60.0,
    ) -> None:
        self._fleet = fleet
        self._picker = picker
        self._leases = leases
        self._upstream = upstream
        self._metrics = metrics
        self._router_id = router_id
        self._write_seconds = write_seconds

    def choose(self, call: Call, decision: Decision) -> Choice | None:
        """Pick among workers that `decision` has not tried; record the attempt. None if none is left."""
        tried = {attempt.uid for attempt in decision.attempts}
        choice = self._picker.pick(self._fleet.views(call.model), call.prompts, excluded=tried)
        if choice is not None:
            decision.attempts.append(attempt_of(choice))
        return choice

    async def serve(
        self, call: Call, decision: Decision, choice: Choice, receive: Receive, send: Send
    ) -> None:
        """Answer `call`, or stop at once when the client leaves, wherever the request stands.

        Raises:
            RequestError: no worker answered, and nothing has been sent.
        """
        answering = asyncio.create_task(self._answer(call, decision, choice, send))
        watching = asyncio.create_task(_client_left(receive))
        try:
            await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
            else:
                decision.outcome = "client left"
        except _ClientStalledError:
            decision.outcome = "client left"
        finally:
            # Cancelling closes the upstream connection, which is what cancels the worker's sequence.
            answering.cancel()
            watching.cancel()
            await asyncio.gather(answering, watching, return_exceptions=True)

    async def _answer(self, call: Call, decision: Decision, choice: Choice, send: Send) -> None:
        refusal: RequestError | None = None
        candidate: Choice | None = choice
        while candidate is not None:
            attempt = decision.attempts[-1]
            try:
                await self._attempt(call, decision, candidate, attempt, send)
            except _TryElsewhereError as error:
                attempt.error = str(error)
                refusal = error.refusal or refusal
                self._metrics.on_failed_attempt(call.model, attempt.status)
                _log.info(
                    "dispatch failed", request_id=decision.request_id, uid=attempt.uid, reason=attempt.error
                )
            else:
                return
            candidate = self.choose(call, decision) if len(decision.attempts) < MAX_TRIES else None
        decision.outcome = "failed"
        raise refusal or no_worker_error(call.model)

    async def _attempt(
        self, call: Call, decision: Decision, choice: Choice, attempt: Attempt, send: Send
    ) -> None:
        async with self._leases.lease(choice.charge) as lease:
            attempt.dispatch = lease.dispatch
            attempt.dispatched_after_ms = self._age_ms(call)
            try:
                async with self._upstream.request(
                    choice.endpoint,
                    "POST",
                    call.path,
                    headers=self._headers(call, decision, lease),
                    body=call.body,
                ) as response:
                    lease.seated()
                    attempt.headers_after_ms = self._age_ms(call)
                    self._compare(call, attempt, response)
                    if response.status in RETRIED_STATUSES:
                        raise _TryElsewhereError(
                            f"the worker answered {response.status}", _refusal(call.model, response)
                        )
                    if response.headers.get("content-type", "").startswith("text/event-stream"):
                        await self._stream(call, decision, attempt, lease, response, send)
                    else:
                        await self._whole(call, decision, attempt, lease, response, send)
            except UpstreamUnreachableError as error:
                raise _TryElsewhereError(str(error)) from error

    async def _stream(  # noqa: PLR0917 - one per part of the answer
        self,
        call: Call,
        decision: Decision,
        attempt: Attempt,
        lease: Lease,
        response: UpstreamResponse,
        send: Send,
    ) -> None:
        events, kept, started = 0, b"", False
        try:
            async for chunk in response.chunks():
                ready, kept = _at_event_boundary(kept + chunk if kept else chunk)
                if not ready:
                    continue
                if not started:
                    started = True
                    await self._start(send, response)
                if attempt.first_byte_after_ms is None:
                    events += _count_events(ready)
                    if events > call.silent_events:
                        self._first_byte(call, attempt, lease)
                await self._write(send, ready, more=True)
            if not started:
                raise _TryElsewhereError("the worker ended its stream without a byte")
        except UpstreamBrokenError as error:
            attempt.error = str(error)
            if not started:
                raise _TryElsewhereError(str(error)) from error
            decision.outcome = "broken"
            self._metrics.on_broken_stream(call.model)
            _log.warning("stream broken", request_id=decision.request_id, uid=attempt.uid, reason=str(error))
            await self._write(send, broken_stream_error().event(), more=False)
            return
        decision.outcome = "completed"
        await self._write(send, kept, more=False)

    async def _whole(  # noqa: PLR0917 - as above
        self,
        call: Call,
        decision: Decision,
        attempt: Attempt,
        lease: Lease,
        response: UpstreamResponse,
        send: Send,
    ) -> None:
        try:
            body = await response.body(MAX_PLAIN_BODY_BYTES)
        except UpstreamTooLargeError as error:
            raise _TryElsewhereError(str(error), _broken_answer_error()) from error
        except UpstreamError as error:
            raise _TryElsewhereError(str(error)) from error
        self._first_byte(call, attempt, lease)
        decision.outcome = "completed" if response.status < 400 else "refused"
        await self._start(send, response, content_length=len(body))
        await self._write(send, body, more=False)

    def _headers(self, call: Call, decision: Decision, lease: Lease) -> list[tuple[str, str]]:
        headers = [
            *call.headers,
            (REQUEST_ID_HEADER, decision.request_id),
            (SALT_HEADER, call.salt.hex()),
            (ROUTER_ID_HEADER, self._router_id),
            (DISPATCH_HEADER, str(lease.dispatch)),
        ]
        if call.seed is not None:
            headers.append((SEED_HEADER, str(call.seed)))
        return headers

    def _compare(self, call: Call, attempt: Attempt, response: UpstreamResponse) -> None:
        """Write what the worker found beside what was predicted."""
        attempt.status = response.status
        attempt.actual_prompt_tokens = _number(response.headers.get(PROMPT_TOKENS_HEADER))
        attempt.actual_cached_tokens = _number(response.headers.get(CACHED_TOKENS_HEADER))
        attempt.position = response.headers.get(POSITION_HEADER, "")[:128] or None
        last_block = response.headers.get(LAST_BLOCK_HEADER)
        if last_block is not None and attempt.last_block is not None:
            attempt.last_block_matches = last_block == attempt.last_block
        actual = attempt.actual_cached_tokens
        if actual is None:
            return
        view = self._fleet.view(attempt.uid)
        coming = view is not None and self._picker.is_coming(view, call.prompts, actual)
        attempt.difference = difference_of(attempt, actual, is_coming=coming)
        self._metrics.on_answer(call.model, attempt)
        if attempt.last_block_matches is False:
            _log.error("router and worker hash a prompt differently", uid=attempt.uid)

    def _first_byte(self, call: Call, attempt: Attempt, lease: Lease) -> None:
        lease.first_byte()
        attempt.first_byte_after_ms = self._age_ms(call)
        self._metrics.on_first_byte(call.model, attempt.first_byte_after_ms / 1e3)

    def _age_ms(self, call: Call) -> float:
        return round((self._leases.now() - call.started) * 1e3, 3)

    async def _start(
        self, send: Send, response: UpstreamResponse, *, content_length: int | None = None
    ) -> None:
        headers = [
            (name.encode(), value.encode("latin-1"))
            for name in PASSED_BACK
            if (value := response.headers.get(name)) is not None
        ]
        if content_length is not None:
            headers.append((b"content-length", str(content_length).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})

    async def _write(self, send: Send, body: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._write_seconds):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError as error:
            raise _ClientStalledError from error


def no_worker_error(model: str) -> RequestError:
    """No worker can take the request now; it may be tried again."""
    return RequestError(
        f"no replica of model {model!r} can answer at the moment",
        status=503,
        type="server_error",
        code="no_replica",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )


def broken_stream_error() -> RequestError:
    """The worker died in the middle of a stream."""
    return RequestError(
        "the replica that was answering is gone; the answer is incomplete",
        status=502,
        type="server_error",
        code="replica_lost",
    )


def _broken_answer_error() -> RequestError:
    return RequestError(
        f"the answer exceeds the limit of {MAX_PLAIN_BODY_BYTES} bytes; ask for a stream",
        status=502,
        type="server_error",
        code="answer_too_large",
    )


def _refusal(model: str, response: UpstreamResponse) -> RequestError:
    """What a client hears when every worker refused; a worker's own words stay inside."""
    retry_after = _number(response.headers.get("retry-after")) or RETRY_AFTER_SECONDS
    if response.status == 429:
        return RequestError(
            f"every replica of model {model!r} is overloaded",
            status=429,
            type="rate_limit_error",
            code="overloaded",
            retry_after_seconds=retry_after,
        )
    error = no_worker_error(model)
    error.retry_after_seconds = retry_after
    return error


def _at_event_boundary(data: bytes) -> tuple[bytes, bytes]:
    """`data` up to the end of its last whole event, and the rest."""
    if data.endswith(b"\n\n"):
        return data, b""
    end = data.rfind(b"\n\n")
    if end < 0:
        return (data, b"") if len(data) > MAX_EVENT_BYTES else (b"", data)
    return data[: end + 2], data[end + 2 :]


def _count_events(data: bytes) -> int:
    """Whole events in `data`; comment lines such as `: ping` are none."""
    return data.count(b"\n\n") - data.count(b"\n\n:") - data.startswith(b":")


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isascii() and value.isdecimal() else None


async def _client_left(receive: Receive) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass


def describe(attempts: Sequence[Attempt]) -> dict[str, object]:
    """What a request's log line says of its attempts."""
    if not attempts:
        return {}
    last = attempts[-1]
    return {
        "endpoint": last.endpoint,
        "predicted_cached_tokens": last.predicted_cached_tokens,
        "actual_cached_tokens": last.actual_cached_tokens,
        "tries": len(attempts),
    }
