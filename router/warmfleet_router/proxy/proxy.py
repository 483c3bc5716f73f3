"""From a queued request to an answer: wait for a worker, try another one, stop when the client leaves."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
import structlog
from starlette.types import Receive, Scope, Send

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.admission import Admission
from warmfleet_router.admission.dispatch import Dispatch
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.error_responses import no_worker_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.proxy.client_response import ClientResponse
from warmfleet_router.proxy.crash_suspects import CrashSuspects, RequestContent
from warmfleet_router.proxy.exchange import Exchange, Exchanges, TryElsewhereError
from warmfleet_router.proxy.retry_budget import RetryBudget
from warmfleet_router.proxy.upstream_request import UpstreamRequest
from warmfleet_router.routing.decision_recorder import DecisionRecorder
from warmfleet_router.routing.decisions import Outcome
from warmfleet_runtime.http.disconnect import ConnectedClient, cancel_on_disconnect
from warmfleet_runtime.http.response_body import response_body

MAX_TRIES: Final = 3

_log = structlog.get_logger("warmfleet.router.proxy")


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """A client that waits for its answer, and the one response to it."""

    client: ConnectedClient
    response: ClientResponse


class Proxy:
    """Takes requests to the workers that admission assigns, one after the other until one answers."""

    def __init__(
        self,
        exchanges: Exchanges,
        *,
        admission: Admission,
        retries: RetryBudget,
        suspects: CrashSuspects,
        metrics: RouterMetrics,
        write_seconds: float,
        ping_seconds: float,
    ) -> None:
        self._exchanges = exchanges
        self._admission = admission
        self._retries = retries
        self._suspects = suspects
        self._metrics = metrics
        self._write_seconds = write_seconds
        self._ping_seconds = ping_seconds

    @contextlib.asynccontextmanager
    async def connection(
        self, scope: Scope, receive: Receive, send: Send, *, stream: bool
    ) -> AsyncGenerator[Connection, None]:
        """Watch a client; when it disconnects, cancel the block at once and go on after it.

        A `stream` to which nothing is sent gets pings while the block lasts.
        """
        async with cancel_on_disconnect(receive) as watched:
            with ClientResponse(
                send,
                response_body(scope),
                write_seconds=self._write_seconds,
                ping_seconds=self._ping_seconds if stream else None,
                on_stalled=watched.disconnect,
            ) as response:
                yield Connection(watched, response)

    async def serve(
        self,
        request: UpstreamRequest,
        queued: QueuedRequest,
        recorder: DecisionRecorder,
        connection: Connection,
    ) -> None:
        """Answer a request.

        Raises:
            RequestError: no worker answered, and nothing has been sent.
        """
        try:
            await self._answer(request, queued, recorder, connection.response)
        except asyncio.CancelledError:
            if connection.client.disconnected:
                recorder.became("client left")
            raise

    async def _answer(
        self,
        request: UpstreamRequest,
        queued: QueuedRequest,
        recorder: DecisionRecorder,
        client: ClientResponse,
    ) -> None:
        content = RequestContent(queued.tenant.name, request.path, request.body)
        try:
            await self._suspects.settled(content)
            self._suspects.check(content)
            asked = msgspec.structs.replace(queued, is_suspect=self._suspects.is_suspect(content))
            dispatch = await self._admission.submit(asked, on_queued=recorder.queued)
            await self._try_workers(Exchange(request, content, recorder, dispatch, client))
        except RequestError as error:
            recorder.became(outcome_of(error))
            if not client.started:
                raise
            await client.refuse(error)

    async def _try_workers(self, exchange: Exchange) -> None:
        """Run `exchange`, and others like it with further workers until one answers."""
        content, recorder, model = exchange.content, exchange.recorder, exchange.model
        refusal: RequestError | None = None
        try:
            self._retries.request()
            while True:
                # It may have waited: meanwhile others like it have been dispatched, or its key was revoked.
                self._suspects.check(content)
                exchange.request.permission.require()
                self._record(recorder, exchange.dispatch)
                try:
                    await self._exchanges.run(exchange)
                except TryElsewhereError as error:
                    recorder.attempt_failed(str(error))
                    refusal = error.refusal or refusal
                    self._metrics.on_failed_attempt(model, recorder.attempt.status)
                    _log.info(
                        "dispatch failed",
                        request_id=recorder.request.request_id,
                        uid=exchange.uid,
                        reason=str(error),
                    )
                else:
                    return
                await self._suspects.settled(content)
                self._suspects.check(content)
                another = await self._another(exchange)
                if another is None:
                    raise refusal or no_worker_error(model)
                exchange = dataclasses.replace(exchange, dispatch=another)
        finally:
            exchange.dispatch.release()
            recorder.generated(exchange.dispatch.usage.output_tokens)

    def _record(self, recorder: DecisionRecorder, dispatch: Dispatch) -> None:
        recorder.dispatched(
            dispatch.picked, dispatch=dispatch.lease.dispatch, held_seconds=dispatch.queued_seconds
        )
        decision = recorder.decision
        if len(decision.attempts) == 1:
            self._metrics.on_decision(dispatch.request.model, decision.mode, decision.decision_ms / 1e3)

    async def _another(self, failed: Exchange) -> Dispatch | None:
        recorder = failed.recorder
        if len(recorder.decision.attempts) >= MAX_TRIES:
            return None
        if not self._retries.take():
            _log.warning("retry refused, the budget is spent", request_id=recorder.request.request_id)
            return None
        is_suspect = self._suspects.is_suspect(failed.content)
        return await self._admission.retry(failed.dispatch, is_suspect=is_suspect)


def outcome_of(error: RequestError) -> Outcome:
    """How a request ended that got `error` from the router."""
    return "refused" if error.status < 500 else "failed"
