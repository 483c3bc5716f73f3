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
    MISDIRECTED_STATUS,
    POSITION_HEADER,
    PRIORITY_HEADER,
    PROMPT_TOKENS_HEADER,
    REQUEST_ID_HEADER,
    ROUTER_ID_HEADER,
    SALT_HEADER,
    SEED_HEADER,
)
from warmfleet_router.admission import Admission
from warmfleet_router.breakers import Breakers, Cause, Trial
from warmfleet_router.client_answer import ClientAnswer, ClientStalledError, generated_tokens
from warmfleet_router.decisions import (
    Attempt,
    Decision,
    Outcome,
    attempt_of,
    difference_of,
)
from warmfleet_router.endpoints import Fleet
from warmfleet_router.event_cutter import EventCutter, count_events
from warmfleet_router.forwarded import PASSED_BACK
from warmfleet_router.leases import Lease, Leases
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.outliers import Outliers
from warmfleet_router.picker import Choice, Picker
from warmfleet_router.refusals import (
    broken_stream_error,
    header_number,
    no_worker_error,
    refusal_of,
    too_large_error,
)
from warmfleet_router.request_prompts import RequestPrompts
from warmfleet_router.retry_budget import RetryBudget
from warmfleet_router.silence import Patience
from warmfleet_router.turn import Grant, Turn
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
STREAM_HEAD_SECONDS: Final = 30.0
"""A worker answers a stream's headers on admission, or after 10 s in its queue."""
MAX_PLAIN_BODY_BYTES: Final = 64 * 1024 * 1024
RETRIED_STATUSES: Final = frozenset({401, 403, MISDIRECTED_STATUS, 429, 502, 503})
"""A worker that is overloaded, draining or without its engine has computed nothing for this request. 401, 403
and 421 are between router and worker: not the token, or not the process, that is expected at the address."""

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


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One call at one worker, with what it holds and whom it reports to."""

    call: Call
    decision: Decision
    choice: Choice
    attempt: Attempt
    lease: Lease
    trial: Trial
    turn: Turn
    answer: ClientAnswer


class _TryElsewhereError(Exception):
    """This worker did not answer, and nothing was sent to the client yet."""

    def __init__(self, reason: str, refusal: RequestError | None = None, *, is_fault: bool = True) -> None:
        """`is_fault`: the worker's breaker should hear of it."""
        super().__init__(reason)
        self.refusal = refusal
        self.is_fault = is_fault


class Proxy:
    """Dispatches calls to the workers that the picker chooses."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        picker: Picker,
        admission: Admission,
        leases: Leases,
        upstream: Upstream,
        breakers: Breakers,
        outliers: Outliers,
        retries: RetryBudget,
        metrics: RouterMetrics,
        router_id: str,
        is_priced: bool,
        write_seconds: float = 60.0,
        ping_seconds: float = 10.0,
    ) -> None:
        self._fleet = fleet
        self._picker = picker
        self._admission = admission
        self._leases = leases
        self._upstream = upstream
        self._breakers = breakers
        self._outliers = outliers
        self._retries = retries
        self._metrics = metrics
        self._router_id = router_id
        self._is_priced = is_priced
        self._write_seconds = write_seconds
        self._ping_seconds = ping_seconds

    async def serve(self, call: Call, decision: Decision, turn: Turn, receive: Receive, send: Send) -> None:
        """Answer `call`, or stop at once when the client leaves, wherever the request stands.

        Raises:
            RequestError: no worker answered, and nothing has been sent.
        """
        answer = ClientAnswer(
            send,
            write_seconds=self._write_seconds,
            ping_seconds=self._ping_seconds if call.stream else None,
        )
        with answer:
            answering = asyncio.create_task(self._answer(call, decision, turn, answer))
            answer.on_stalled = answering.cancel
            watching = asyncio.create_task(_client_left(receive))
            try:
                await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
                if answering.done() and not answering.cancelled():
                    answering.result()
                else:
                    decision.outcome = "client left"
            except ClientStalledError:
                decision.outcome = "client left"
            finally:
                # Cancelling closes the upstream connection, which is what cancels the worker's sequence.
                answering.cancel()
                watching.cancel()
                await asyncio.gather(answering, watching, return_exceptions=True)

    async def _answer(self, call: Call, decision: Decision, turn: Turn, answer: ClientAnswer) -> None:
        try:
            await self._try_workers(call, decision, turn, answer)
        except RequestError as error:
            decision.outcome = outcome_of(error)
            if not answer.started:
                raise
            await answer.refuse(error)

    async def _try_workers(self, call: Call, decision: Decision, turn: Turn, answer: ClientAnswer) -> None:
        refusal: RequestError | None = None
        grant: Grant | None = await self._admission.granted(turn)
        self._retries.request()
        while grant is not None:
            attempt = attempt_of(grant.choice)
            self._record(call, decision, turn, attempt)
            if not self._is_priced:
                self._judge_steps(grant.choice)
            try:
                await self._attempt(call, decision, turn, grant, answer)
            except _TryElsewhereError as error:
                attempt.error = str(error)
                refusal = error.refusal or refusal
                self._metrics.on_failed_attempt(call.model, attempt.status)
                _log.info(
                    "dispatch failed", request_id=decision.request_id, uid=attempt.uid, reason=attempt.error
                )
            else:
                return
            grant = await self._another(decision, turn)
        raise refusal or no_worker_error(call.model)

    def _record(self, call: Call, decision: Decision, turn: Turn, attempt: Attempt) -> None:
        """Write down a choice before its dispatch: what it predicts cannot know what came of it."""
        if not decision.attempts:
            decision.mode = "precise" if attempt.precise else "load-only"
            self._metrics.on_decision(call.model, decision.mode, decision.decision_ms / 1e3)
        decision.attempts.append(attempt)
        if turn.held_since:
            decision.held_ms = round(turn.held_seconds * 1e3, 3)

    async def _another(self, decision: Decision, turn: Turn) -> Grant | None:
        if len(decision.attempts) >= MAX_TRIES:
            return None
        if not self._retries.take():
            self._metrics.on_refused_retry()
            _log.warning("retry refused, the budget is spent", request_id=decision.request_id)
            return None
        return await self._admission.again(turn)

    async def _attempt(
        self, call: Call, decision: Decision, turn: Turn, grant: Grant, answer: ClientAnswer
    ) -> None:
        choice = grant.choice
        async with grant.lease as lease:
            with self._breakers.trial(choice.endpoint.uid, choice.epoch) as trial:
                exchange = _Exchange(
                    call, decision, choice, decision.attempts[-1], lease, trial, turn, answer
                )
                try:
                    await self._exchange(exchange)
                except _TryElsewhereError as error:
                    if error.is_fault:
                        trial.failed(str(error))
                    raise

    async def _exchange(self, exchange: _Exchange) -> None:
        call, attempt, lease = exchange.call, exchange.attempt, exchange.lease
        attempt.dispatch = lease.dispatch
        attempt.dispatched_after_ms = self._age_ms(call)
        try:
            async with self._upstream.request(
                exchange.choice.endpoint,
                "POST",
                call.path,
                headers=self._headers(exchange),
                body=call.body,
                wait_seconds=STREAM_HEAD_SECONDS if call.stream else None,
                patience=Patience.STREAM if call.stream else Patience.PLAIN,
            ) as response:
                lease.seated()
                attempt.headers_after_ms = self._age_ms(call)
                self._compare(call, attempt, response)
                if response.status in RETRIED_STATUSES:
                    raise self._refused(exchange, response)
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    await self._stream(exchange, response)
                else:
                    await self._whole(exchange, response)
        except UpstreamUnreachableError as error:
            raise _TryElsewhereError(str(error)) from error

    def _refused(self, exchange: _Exchange, response: UpstreamResponse) -> _TryElsewhereError:
        """Why a worker that refuses is left, and whether it is to blame."""
        status, endpoint = response.status, exchange.choice.endpoint
        if status == MISDIRECTED_STATUS:
            reason = "another worker answers at its address"
            self._breakers.eject(endpoint.uid, exchange.choice.epoch, Cause.IMPOSTOR, reason)
        view = self._fleet.view(endpoint.uid)
        is_leaving = status == 503 and (view is None or not view.ready)
        return _TryElsewhereError(
            f"the worker answered {status}",
            refusal_of(exchange.call.model, status, response.headers.get("retry-after")),
            is_fault=status != 429 and not is_leaving,
        )

    async def _stream(self, exchange: _Exchange, response: UpstreamResponse) -> None:
        call, decision, attempt = exchange.call, exchange.decision, exchange.attempt
        answer, turn = exchange.answer, exchange.turn
        events, cutter, started = 0, EventCutter(), False
        try:
            async for chunk in response.chunks():
                ready = cutter.feed(chunk)
                if not ready:
                    continue
                if not started:
                    started = True
                    await answer.start(response.status, _passed_back(response))
                events += count_events(ready)
                turn.output_tokens = max(events - call.silent_events, 0)
                if attempt.first_byte_after_ms is None and turn.output_tokens:
                    self._first_byte(exchange)
                    self._judge_speed(exchange)
                await answer.write(ready, more=True)
            if not started:
                raise _TryElsewhereError("the worker ended its stream without a byte")
        except UpstreamBrokenError as error:
            if not started:
                raise _TryElsewhereError(str(error)) from error
            attempt.error = str(error)
            exchange.trial.failed(attempt.error)
            decision.outcome = "broken"
            self._metrics.on_broken_stream(call.model)
            _log.warning("stream broken", request_id=decision.request_id, uid=attempt.uid, reason=str(error))
            await answer.refuse(broken_stream_error())
            return
        exchange.trial.completed()
        decision.outcome = "completed"
        turn.completed = True
        await answer.write(cutter.rest(), more=False)

    async def _whole(self, exchange: _Exchange, response: UpstreamResponse) -> None:
        try:
            body = await response.body(MAX_PLAIN_BODY_BYTES)
        except UpstreamTooLargeError as error:
            raise _TryElsewhereError(
                str(error), too_large_error(MAX_PLAIN_BODY_BYTES), is_fault=False
            ) from error
        except UpstreamError as error:
            raise _TryElsewhereError(str(error)) from error
        self._first_byte(exchange)
        if response.status < 500:
            exchange.trial.completed()
        exchange.decision.outcome = "completed" if response.status < 400 else "refused"
        generated = generated_tokens(body)
        exchange.turn.output_tokens = generated or 0
        exchange.turn.completed = generated is not None
        if exchange.answer.started:  # by pings, for a stream that the worker refuses
            await exchange.answer.end_with_event(b"data: " + body.replace(b"\n", b" ") + b"\n\n")
            return
        headers = [*_passed_back(response), (b"content-length", str(len(body)).encode())]
        await exchange.answer.start(response.status, headers)
        await exchange.answer.write(body, more=False)

    def _first_byte(self, exchange: _Exchange) -> None:
        exchange.lease.first_byte()
        attempt = exchange.attempt
        attempt.first_byte_after_ms = self._age_ms(exchange.call)
        self._metrics.on_first_byte(exchange.call.model, attempt.first_byte_after_ms / 1e3)

    def _judge_steps(self, choice: Choice) -> None:
        """Eject a worker that reports much slower steps than its peers; this request still goes there."""
        verdict = self._outliers.report(choice.candidate, choice.ranking.candidates)
        if verdict:
            self._breakers.eject(choice.endpoint.uid, choice.epoch, Cause.SLOW, verdict)
            self._outliers.forget(choice.endpoint.uid)

    def _judge_speed(self, exchange: _Exchange) -> None:
        """Eject a worker that is much slower than its own rates say, and than its peers are."""
        choice, attempt = exchange.choice, exchange.attempt
        waited_ms = (attempt.first_byte_after_ms or 0.0) - (attempt.dispatched_after_ms or 0.0)
        uid = choice.endpoint.uid
        verdict = self._outliers.observe(
            uid,
            seconds=waited_ms / 1e3,
            expected_seconds=choice.candidate.cost.ttft_ms / 1e3,
            peers=[candidate.uid for candidate in choice.ranking.candidates],
            now=self._leases.now(),
            alone=exchange.trial.is_probe,
        )
        if verdict:
            self._breakers.eject(uid, choice.epoch, Cause.SLOW, verdict)
            self._outliers.forget(uid)
        else:
            exchange.trial.answered()

    def _headers(self, exchange: _Exchange) -> list[tuple[str, str]]:
        call, lease = exchange.call, exchange.lease
        headers = [
            *call.headers,
            (REQUEST_ID_HEADER, exchange.decision.request_id),
            (SALT_HEADER, call.salt.hex()),
            (ROUTER_ID_HEADER, self._router_id),
            (DISPATCH_HEADER, str(lease.dispatch)),
            (PRIORITY_HEADER, str(exchange.turn.priority)),
        ]
        if call.seed is not None:
            headers.append((SEED_HEADER, str(call.seed)))
        return headers

    def _compare(self, call: Call, attempt: Attempt, response: UpstreamResponse) -> None:
        """Write what the worker found beside what was predicted."""
        attempt.status = response.status
        attempt.actual_prompt_tokens = header_number(response.headers.get(PROMPT_TOKENS_HEADER))
        attempt.actual_cached_tokens = header_number(response.headers.get(CACHED_TOKENS_HEADER))
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

    def _age_ms(self, call: Call) -> float:
        return round((self._leases.now() - call.started) * 1e3, 3)


def _passed_back(response: UpstreamResponse) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode(), value.encode("latin-1"))
        for name in PASSED_BACK
        if (value := response.headers.get(name)) is not None
    ]


async def _client_left(receive: Receive) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass


def outcome_of(error: RequestError) -> Outcome:
    """How a request ended that got `error` from the router."""
    return "refused" if error.status == 429 else "failed"


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
