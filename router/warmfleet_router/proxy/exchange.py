"""One attempt of one request at one worker: send it, compare what was predicted, pass the answer on.

Bodies are not parsed. A stream is cut only at the blank lines between its events, so that a worker's death
never leaves half an event in front of the error object; its events are counted. A plain answer is read whole
(bounded) before anything is sent: until then a dead worker costs the client time and nothing else. What the
worker reports to the router is in its headers.
"""

from dataclasses import dataclass
from typing import Final

import structlog

from warmfleet_contracts.cache.worker_api import (
    CACHED_TOKENS_HEADER,
    DISPATCH_HEADER,
    GENERATED_TOKENS_HEADER,
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
from warmfleet_contracts.openai import RequestError
from warmfleet_contracts.openai.server_sent_event import server_sent_event
from warmfleet_router.admission.dispatch import Dispatch
from warmfleet_router.error_responses import (
    broken_stream_error,
    header_number,
    too_large_error,
    worker_refusal_error,
)
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.proxy.client_response import ClientResponse
from warmfleet_router.proxy.headers import PASSED_BACK
from warmfleet_router.proxy.sse_splitter import (
    SseSplitter,
    count_events,
    has_server_error,
    without_leading_comments,
)
from warmfleet_router.proxy.upstream_request import UpstreamRequest
from warmfleet_router.routing.decisions import Attempt, Decision, difference_of
from warmfleet_router.routing.leases import Leases
from warmfleet_router.routing.prediction import Predictor
from warmfleet_router.routing.slow_workers import SlowWorkerEjector
from warmfleet_router.workers.breakers import Breakers, Cause
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
MAX_PLAIN_BODY_BYTES: Final = 64 * 1024 * 1024
RETRIED_STATUSES: Final = frozenset({401, 403, MISDIRECTED_STATUS, 429, 502, 503})
"""A worker that is overloaded, draining or without its engine has computed nothing for this request. 401, 403
and 421 are between router and worker: not the token, or not the process, that is expected at the address."""

_log = structlog.get_logger("warmfleet.router.proxy")


class TryElsewhereError(Exception):
    """This worker did not answer, and nothing was sent to the client yet."""

    def __init__(self, reason: str, refusal: RequestError | None = None, *, is_fault: bool = True) -> None:
        """`is_fault`: it counts against the worker in its breaker."""
        super().__init__(reason)
        self.refusal = refusal
        self.is_fault = is_fault


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One attempt at one worker, with what it writes to."""

    request: UpstreamRequest
    decision: Decision
    attempt: Attempt
    dispatch: Dispatch
    client: ClientResponse


class Exchanges:
    """Has requests answered by the workers that they were assigned to."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        predictor: Predictor,
        leases: Leases,
        upstream: Upstream,
        breakers: Breakers,
        slow_workers: SlowWorkerEjector,
        metrics: RouterMetrics,
        router_id: str,
    ) -> None:
        self._fleet = fleet
        self._predictor = predictor
        self._leases = leases
        self._upstream = upstream
        self._breakers = breakers
        self._slow_workers = slow_workers
        self._metrics = metrics
        self._router_id = router_id

    async def run(
        self, request: UpstreamRequest, decision: Decision, dispatch: Dispatch, client: ClientResponse
    ) -> None:
        """Send `request` to the worker of `dispatch` and its answer to the client; ends the lease.

        Raises:
            TryElsewhereError: the worker did not answer, and another one may.
        """
        picked = dispatch.picked
        self._slow_workers.dispatched(picked)
        if picked.ignores_ejections:
            self._metrics.on_panic()
        async with dispatch.lease:
            with dispatch.trial as trial:
                exchange = _Exchange(request, decision, decision.attempts[-1], dispatch, client)
                try:
                    await self._send(exchange)
                except TryElsewhereError as error:
                    if error.is_fault:
                        trial.failed(str(error))
                    raise

    async def _send(self, exchange: _Exchange) -> None:
        request, attempt, lease = exchange.request, exchange.attempt, exchange.dispatch.lease
        attempt.dispatch = lease.dispatch
        attempt.dispatched_after_ms = self._age_ms(exchange)
        try:
            async with self._upstream.request(
                exchange.dispatch.picked.endpoint,
                "POST",
                request.path,
                headers=self._headers(exchange),
                body=request.body,
                wait_seconds=STREAM_HEAD_SECONDS if request.stream else None,
                kind=ResponseKind.STREAM if request.stream else ResponseKind.WHOLE,
            ) as response:
                lease.seated()
                attempt.headers_after_ms = self._age_ms(exchange)
                self._compare(exchange, response)
                if response.status in RETRIED_STATUSES:
                    raise self._refused(exchange, response)
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    await self._stream(exchange, response)
                else:
                    await self._whole(exchange, response)
        except UpstreamUnreachableError as error:
            raise TryElsewhereError(str(error)) from error

    def _refused(self, exchange: _Exchange, response: UpstreamResponse) -> TryElsewhereError:
        """Why a worker that refuses is left, and whether it is to blame."""
        status, picked = response.status, exchange.dispatch.picked
        if status == MISDIRECTED_STATUS:
            reason = "another worker answers at its address"
            self._breakers.eject(picked.endpoint.uid, picked.epoch, Cause.IMPOSTOR, reason)
        view = self._fleet.worker(picked.endpoint.uid)
        is_leaving = status == 503 and (view is None or not view.ready)
        return TryElsewhereError(
            f"the worker answered {status}",
            worker_refusal_error(exchange.decision.model, status, response.headers.get("retry-after")),
            is_fault=status != 429 and not is_leaving,
        )

    async def _stream(self, exchange: _Exchange, response: UpstreamResponse) -> None:
        request, decision, attempt = exchange.request, exchange.decision, exchange.attempt
        client, usage = exchange.client, exchange.dispatch.usage
        events, splitter, started, failed = 0, SseSplitter(), False, False
        try:
            async for chunk in response.chunks():
                ready = splitter.feed(chunk)
                if not started:
                    # A worker's pings are no answer: until its first event another worker may take over, and
                    # the client gets the router's own pings.
                    ready = without_leading_comments(ready)
                if not ready:
                    continue
                if not started:
                    started = True
                    await client.start(response.status, _passed_back(response))
                is_error = has_server_error(ready)
                failed = failed or is_error
                events += count_events(ready) - is_error
                usage.output_tokens = max(events - request.role_events, 0)
                if attempt.first_byte_after_ms is None and usage.output_tokens:
                    waited_ms = self._first_byte(exchange)
                    self._slow_workers.answered(
                        exchange.dispatch.picked, waited_ms / 1e3, exchange.dispatch.trial
                    )
                await client.write(ready, more=True)
            if not started:
                raise TryElsewhereError("the worker ended its stream without an event")
        except UpstreamBrokenError as error:
            if not started:
                raise TryElsewhereError(str(error)) from error
            attempt.error = str(error)
            exchange.dispatch.trial.failed(attempt.error)
            decision.outcome = "broken"
            self._metrics.on_broken_stream(decision.model)
            _log.warning("stream broken", request_id=decision.request_id, uid=attempt.uid, reason=str(error))
            exchange.dispatch.lease.close()
            await client.refuse(broken_stream_error())
            return
        if failed:
            self._failed(exchange, "the worker ended its stream with an error")
        else:
            exchange.dispatch.trial.completed()
            decision.outcome = "completed"
            usage.is_completed = True
        await client.write(splitter.rest(), more=False)

    async def _whole(self, exchange: _Exchange, response: UpstreamResponse) -> None:
        try:
            body = await response.body(MAX_PLAIN_BODY_BYTES)
        except UpstreamTooLargeError as error:
            raise TryElsewhereError(
                str(error), too_large_error(MAX_PLAIN_BODY_BYTES), is_fault=False
            ) from error
        except UpstreamError as error:
            raise TryElsewhereError(str(error)) from error
        if response.status >= 500:
            self._failed(exchange, f"the worker answered {response.status}")
            self._metrics.on_failed_attempt(exchange.decision.model, response.status)
        else:
            self._first_byte(exchange)
            exchange.dispatch.trial.completed()
            exchange.decision.outcome = "completed" if response.status < 400 else "refused"
        generated = header_number(response.headers.get(GENERATED_TOKENS_HEADER))
        exchange.dispatch.usage.output_tokens = generated or 0
        exchange.dispatch.usage.is_completed = generated is not None
        if exchange.client.started:  # by pings, for a stream that the worker refuses
            await exchange.client.end_with_event(server_sent_event(body))
            return
        headers = [*_passed_back(response), (b"content-length", str(len(body)).encode())]
        await exchange.client.start(response.status, headers)
        await exchange.client.write(body, more=False)

    def _failed(self, exchange: _Exchange, reason: str) -> None:
        """The client gets the worker's error, which counts against the worker and teaches no seat time."""
        exchange.attempt.error = reason
        exchange.decision.outcome = "failed"
        exchange.dispatch.trial.failed(reason)
        exchange.dispatch.lease.close()

    def _first_byte(self, exchange: _Exchange) -> float:
        """The prefill is done; milliseconds since the dispatch."""
        exchange.dispatch.lease.first_byte()
        attempt = exchange.attempt
        attempt.first_byte_after_ms = self._age_ms(exchange)
        self._metrics.on_first_byte(exchange.decision.model, attempt.first_byte_after_ms / 1e3)
        return attempt.first_byte_after_ms - (attempt.dispatched_after_ms or 0.0)

    def _headers(self, exchange: _Exchange) -> list[tuple[str, str]]:
        request, lease = exchange.request, exchange.dispatch.lease
        headers = [
            *request.headers,
            (REQUEST_ID_HEADER, exchange.decision.request_id),
            (SALT_HEADER, request.salt.hex()),
            (ROUTER_ID_HEADER, self._router_id),
            (DISPATCH_HEADER, str(lease.dispatch)),
            (PRIORITY_HEADER, str(exchange.dispatch.priority)),
        ]
        if request.seed is not None:
            headers.append((SEED_HEADER, str(request.seed)))
        return headers

    def _compare(self, exchange: _Exchange, response: UpstreamResponse) -> None:
        """Write what the worker found beside what was predicted."""
        attempt = exchange.attempt
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
        view = self._fleet.worker(attempt.uid)
        coming = view is not None and self._predictor.is_coming(
            view, exchange.dispatch.request.prompts, actual
        )
        attempt.difference = difference_of(attempt, actual, is_coming=coming)
        self._metrics.on_answer(exchange.decision.model, attempt)
        if attempt.last_block_matches is False:
            _log.error("router and worker hash a prompt differently", uid=attempt.uid)

    def _age_ms(self, exchange: _Exchange) -> float:
        """Since the request's body was complete."""
        return round((self._leases.now() - exchange.dispatch.request.body_read_at) * 1e3, 3)


def _passed_back(response: UpstreamResponse) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode(), value.encode("latin-1"))
        for name in PASSED_BACK
        if (value := response.headers.get(name)) is not None
    ]
