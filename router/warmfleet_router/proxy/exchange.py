"""One attempt of one request at one worker: send it, compare what was predicted, pass the answer on.

A stream's first events are awaited, as until then another worker may answer; the rest goes from callback to
callback (`event_relay`). A plain answer is read whole (bounded) before anything is sent: until then a dead
worker costs the client time and nothing else. What the worker reports to the router is in its headers.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from warmfleet_contracts.cache.kv_events import PlainAnswer
from warmfleet_contracts.cache.worker_api import (
    ADMITTED_AFTER_HEADER,
    DISPATCH_HEADER,
    FIRST_TOKEN_AFTER_HEADER,
    GENERATED_TOKENS_HEADER,
    MISDIRECTED_STATUS,
    PRIORITY_HEADER,
    REQUEST_ID_HEADER,
    ROUTER_ID_HEADER,
    SALT_HEADER,
    SEED_HEADER,
)
from warmfleet_contracts.openai import RequestError
from warmfleet_contracts.openai.server_sent_event import server_sent_event
from warmfleet_router.admission.dispatch import Dispatch
from warmfleet_router.admission.in_flight_limits import BufferedAnswer
from warmfleet_router.error_responses import (
    broken_stream_error,
    header_seconds,
    header_tokens,
    too_large_error,
    worker_refusal_error,
)
from warmfleet_router.metrics import ComputedPrompt, RouterMetrics
from warmfleet_router.proxy.cache_comparison import CacheComparison
from warmfleet_router.proxy.client_response import ClientResponse
from warmfleet_router.proxy.crash_suspects import CrashSuspects, RequestContent
from warmfleet_router.proxy.event_relay import EventRelay
from warmfleet_router.proxy.headers import passed_back
from warmfleet_router.proxy.plain_answer import MAX_PLAIN_BODY_BYTES, read_plain_answer
from warmfleet_router.proxy.sse_splitter import (
    SseSplitter,
    is_refused_stream,
    without_leading_comments,
)
from warmfleet_router.proxy.token_gaps import TokenGaps
from warmfleet_router.proxy.upstream_request import UpstreamRequest
from warmfleet_router.routing.decision_recorder import DecisionRecorder
from warmfleet_router.routing.slow_workers import SlowWorkerEjector
from warmfleet_router.workers.breakers import Cause
from warmfleet_router.workers.fleet import Fleet
from warmfleet_router.workers.liveness import ResponseKind
from warmfleet_router.workers.upstream import (
    Upstream,
    UpstreamBrokenError,
    UpstreamError,
    UpstreamResponse,
    UpstreamTooLargeError,
    UpstreamUnreachableError,
)

STREAM_HEAD_SECONDS: Final = 30.0
"""A worker answers a stream's headers on admission, or after 10 s in its queue."""
RETRIED_STATUSES: Final = frozenset({401, 403, MISDIRECTED_STATUS, 429, 502, 503})
"""A worker that is overloaded, draining or without its engine has computed nothing for this request. 401, 403
and 421 are between router and worker: not the token, or not the process, that is expected at the address."""

_log = structlog.get_logger("warmfleet.router.proxy")


class TryElsewhereError(Exception):
    """This worker did not answer, and nothing was sent to the client yet."""

    def __init__(
        self,
        reason: str,
        refusal: RequestError | None = None,
        *,
        is_fault: bool = True,
        was_computing: bool = True,
    ) -> None:
        """`is_fault`: it counts against the worker in its breaker. `was_computing`: it may have begun."""
        super().__init__(reason)
        self.refusal = refusal
        self.is_fault = is_fault
        self.was_computing = was_computing


@dataclass(frozen=True, slots=True)
class Exchange:
    """One attempt at one worker, with what it writes to."""

    request: UpstreamRequest
    content: RequestContent
    recorder: DecisionRecorder
    dispatch: Dispatch
    client: ClientResponse

    @property
    def model(self) -> str:
        return self.dispatch.request.model

    @property
    def uid(self) -> str:
        """Of the worker."""
        return self.dispatch.picked.endpoint.uid


class Exchanges:
    """Has requests answered by the workers that they were assigned to."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        comparison: CacheComparison,
        upstream: Upstream,
        suspects: CrashSuspects,
        slow_workers: SlowWorkerEjector,
        metrics: RouterMetrics,
        life_id: str,
        now: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._comparison = comparison
        self._upstream = upstream
        self._suspects = suspects
        self._slow_workers = slow_workers
        self._metrics = metrics
        self._life_id = life_id
        self._now = now

    async def run(self, exchange: Exchange) -> None:
        """Have the worker answer the client; ends the lease.

        Raises:
            TryElsewhereError: the worker did not answer, and another one may.
        """
        dispatch = exchange.dispatch
        self._slow_workers.dispatched(dispatch.picked, dispatch.trial)
        if dispatch.picked.ignores_ejections:
            self._metrics.on_panic()
        async with dispatch.lease:
            with dispatch.trial as trial:
                try:
                    await self._send(exchange)
                except TryElsewhereError as error:
                    if error.is_fault:
                        trial.failed(str(error))
                    if error.was_computing:
                        self._suspect(exchange, is_lost=error.refusal is None)
                    raise
                except asyncio.CancelledError:
                    self._reported_first_token(exchange)
                    raise

    async def _send(self, exchange: Exchange) -> None:
        request, dispatch = exchange.request, exchange.dispatch
        causes = self._comparison.causes(dispatch)
        try:
            async with self._upstream.request(
                dispatch.picked.endpoint,
                "POST",
                request.path,
                headers=self._headers(exchange),
                body=request.body,
                wait_seconds=STREAM_HEAD_SECONDS if request.stream else None,
                kind=ResponseKind.STREAM if request.stream else ResponseKind.WHOLE,
            ) as response:
                prompt = self._comparison.answered(dispatch, causes, exchange.recorder, response)
                if response.status in RETRIED_STATUSES:
                    raise self._refused(exchange, response)
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    dispatch.lease.seated()
                    await self._stream(exchange, response, prompt)
                else:
                    with request.ticket.answer() as answer:
                        await self._whole(exchange, response, answer, prompt)
        except UpstreamUnreachableError as error:
            raise TryElsewhereError(str(error), was_computing=not error.is_down) from error

    def _refused(self, exchange: Exchange, response: UpstreamResponse) -> TryElsewhereError:
        """Why a worker that refuses is left, and whether that counts against it."""
        status = response.status
        if status == MISDIRECTED_STATUS:
            exchange.dispatch.trial.eject(Cause.IMPOSTOR, "another worker answers at its address")
        reason, retry_after = f"the worker answered {status}", response.headers.get("retry-after")
        if status == 503:
            return self._not_ready(exchange, reason, retry_after)
        refusal = worker_refusal_error(exchange.model, status, retry_after)
        return TryElsewhereError(reason, refusal, is_fault=status != 429, was_computing=status == 502)

    def _not_ready(
        self, exchange: Exchange, reason: str, retry_after: str | None = None
    ) -> TryElsewhereError:
        """A 503 of a worker: no fault of one that is known to drain or to have lost its engine."""
        view = self._fleet.worker(exchange.uid)
        is_leaving = view is None or not view.ready
        refusal = worker_refusal_error(exchange.model, 503, retry_after)
        return TryElsewhereError(reason, refusal, is_fault=not is_leaving)

    async def _stream(self, exchange: Exchange, response: UpstreamResponse, prompt: ComputedPrompt) -> None:
        client, recorder, splitter = exchange.client, exchange.recorder, SseSplitter()
        relay = self._event_relay(exchange, splitter, prompt)
        try:
            first = await self._first_events(exchange, response, splitter)
        except UpstreamBrokenError as error:
            raise TryElsewhereError(str(error)) from error
        await client.start(response.status, passed_back(response.headers))
        try:
            await relay.begin(first)
            await response.relay(relay)
        except UpstreamBrokenError as error:
            recorder.attempt_failed(str(error))
            exchange.dispatch.trial.failed(str(error))
            recorder.became("broken")
            self._metrics.on_broken_stream(exchange.model)
            _log.warning(
                "stream broken",
                request_id=recorder.request.request_id,
                uid=exchange.uid,
                reason=str(error),
            )
            self._suspect(exchange, is_lost=True)
            exchange.dispatch.lease.close()
            await client.refuse(broken_stream_error())
            return
        if relay.failed:
            self._failed(exchange, "the worker ended its stream with an error")
        else:
            exchange.dispatch.trial.completed()
            recorder.became("completed")
            exchange.dispatch.usage.is_completed = True
            relay.ended()
        await client.write(splitter.rest(), more=False)

    def _event_relay(self, exchange: Exchange, splitter: SseSplitter, prompt: ComputedPrompt) -> EventRelay:
        gaps = TokenGaps(
            exchange.dispatch.request.sequences,
            now=self._now,
            record=self._metrics.models.of(exchange.model).inter_token.add,
            record_mean=partial(self._metrics.on_mean_gap, exchange.model),
        )

        def on_first_token() -> None:
            self._metrics.on_computed(exchange.model, prompt)
            waited_seconds = self._first_byte(exchange) / 1e3
            self._slow_workers.answered(exchange.dispatch.picked, waited_seconds, exchange.dispatch.trial)

        return EventRelay(
            exchange.client,
            splitter,
            exchange.dispatch.usage,
            gaps,
            role_events=exchange.request.role_events,
            on_first_token=on_first_token,
        )

    async def _first_events(
        self, exchange: Exchange, response: UpstreamResponse, splitter: SseSplitter
    ) -> bytes:
        """What a stream begins with, without its worker's pings.

        They are no answer: until its first event another worker may take over, and the client gets the
        router's own pings.

        Raises:
            TryElsewhereError: after its pings the worker refuses, or ends the stream.
            UpstreamBrokenError: it died or fell silent.
        """
        async with aclosing(response.chunks()) as chunks:
            async for chunk in chunks:
                events = without_leading_comments(splitter.feed(chunk))
                if is_refused_stream(events):
                    raise self._not_ready(exchange, "the worker refused after its pings")
                if events:
                    return events
        raise TryElsewhereError("the worker ended its stream without an event")

    async def _whole(
        self,
        exchange: Exchange,
        response: UpstreamResponse,
        answer: BufferedAnswer,
        prompt: ComputedPrompt,
    ) -> None:
        try:
            pieces = await read_plain_answer(response, answer)
        except UpstreamTooLargeError as error:
            # The worker has done its work, and another one would only repeat it.
            self._computed(exchange, response, prompt)
            raise too_large_error(MAX_PLAIN_BODY_BYTES) from error
        except UpstreamError as error:
            raise TryElsewhereError(str(error)) from error
        self._computed(exchange, response, prompt)
        if exchange.client.started:  # by pings, for a stream that the worker refuses
            await exchange.client.end_with_event(server_sent_event(b"".join(pieces)))
            return
        await exchange.client.send_whole(response.status, passed_back(response.headers), pieces)

    def _computed(self, exchange: Exchange, response: UpstreamResponse, prompt: ComputedPrompt) -> None:
        """A plain answer was computed, or has failed: count it for the worker and for the tenant."""
        if response.status >= 500:
            self._failed(exchange, f"the worker answered {response.status}")
            self._metrics.on_failed_attempt(exchange.model, response.status)
        else:
            self._metrics.on_computed(exchange.model, prompt)
            self._answered(exchange, response)
            exchange.dispatch.trial.completed()
            exchange.recorder.became("completed" if response.status < 400 else "refused")
        generated = header_tokens(response.headers.get(GENERATED_TOKENS_HEADER))
        exchange.dispatch.usage.output_tokens = generated or 0
        exchange.dispatch.usage.is_completed = generated is not None

    def _failed(self, exchange: Exchange, reason: str) -> None:
        """The client gets the worker's error, which counts against the worker and teaches no seat time."""
        exchange.recorder.attempt_failed(reason)
        exchange.recorder.became("failed")
        exchange.dispatch.trial.failed(reason)
        self._suspect(exchange, is_lost=False)
        exchange.dispatch.lease.close()

    def _suspect(self, exchange: Exchange, *, is_lost: bool) -> None:
        """The attempt failed. If the worker's epoch ends, too, that may be because of the request."""
        epoch = exchange.dispatch.picked.epoch
        if exchange.dispatch.lease.is_prefilling:
            was_alone = exchange.dispatch.is_alone
            self._suspects.failed(exchange.content, exchange.uid, epoch, is_lost=is_lost, was_alone=was_alone)

    def _first_byte(self, exchange: Exchange) -> float:
        """The first token of a stream is here; milliseconds since the dispatch."""
        exchange.dispatch.lease.first_byte()
        self._suspects.answered(exchange.content)
        after_ms = exchange.recorder.first_byte()
        self._metrics.on_first_byte(exchange.model, after_ms / 1e3)
        return after_ms - exchange.recorder.attempt.dispatched_after_ms

    def _answered(self, exchange: Exchange, response: UpstreamResponse) -> None:
        """A plain answer is whole; its headers report what the last load report may not have."""
        lease, headers = exchange.dispatch.lease, response.headers
        admitted_after = header_seconds(headers.get(ADMITTED_AFTER_HEADER))
        first_token_after = header_seconds(headers.get(FIRST_TOKEN_AFTER_HEADER))
        if admitted_after is not None and first_token_after is not None:
            tokens = header_tokens(headers.get(GENERATED_TOKENS_HEADER)) or 0
            lease.progressed(PlainAnswer(lease.dispatch, admitted_after, first_token_after, tokens))
        lease.first_byte()
        # Before it is sent: how long the client takes to read it is no time at the worker.
        lease.close(ended_well=True)
        self._suspects.answered(exchange.content)
        self._reported_first_token(exchange)

    def _reported_first_token(self, exchange: Exchange) -> None:
        """Record when a plain answer got its first token; nothing where its worker did not report that."""
        seconds = exchange.dispatch.lease.first_token_after_seconds
        if seconds is not None:
            dispatched_after_ms = exchange.recorder.attempt.dispatched_after_ms
            after_ms = exchange.recorder.first_byte(round(dispatched_after_ms + seconds * 1e3, 3))
            self._metrics.on_first_byte(exchange.model, after_ms / 1e3)
            # Of the tokens after the first ones, the mean is known.
            sequences = exchange.dispatch.request.sequences
            tokens = exchange.dispatch.lease.generated_tokens - sequences
            if tokens > 0:
                gap_ms = (exchange.recorder.age_ms() - after_ms) * sequences / tokens
                self._metrics.on_tokens(exchange.model, tokens, gap_ms)
                self._metrics.on_mean_gap(exchange.model, gap_ms)

    def _headers(self, exchange: Exchange) -> list[tuple[str, str]]:
        request, lease = exchange.request, exchange.dispatch.lease
        headers = [
            *request.headers,
            (REQUEST_ID_HEADER, exchange.recorder.request.request_id),
            (SALT_HEADER, request.salt.hex()),
            (ROUTER_ID_HEADER, self._life_id),
            (DISPATCH_HEADER, str(lease.dispatch)),
            (PRIORITY_HEADER, str(exchange.dispatch.priority)),
        ]
        if request.seed is not None:
            headers.append((SEED_HEADER, str(request.seed)))
        return headers
