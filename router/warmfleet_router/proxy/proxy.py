"""From a queued request to an answer: wait for a worker, try another one, stop when the client leaves."""

from collections.abc import Sequence
from typing import Final

import structlog
from starlette.types import Receive, Send

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.admission import Admission
from warmfleet_router.admission.dispatch import Dispatch
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.error_responses import no_worker_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.proxy.client_response import ClientResponse
from warmfleet_router.proxy.exchange import Exchanges, TryElsewhereError
from warmfleet_router.proxy.retry_budget import RetryBudget
from warmfleet_router.proxy.upstream_request import UpstreamRequest
from warmfleet_router.routing.decisions import Attempt, Decision, Outcome, attempt_of
from warmfleet_runtime.http.disconnect import cancel_on_disconnect

MAX_TRIES: Final = 3

_log = structlog.get_logger("warmfleet.router.proxy")


class Proxy:
    """Takes requests to the workers that admission assigns, one after the other until one answers."""

    def __init__(
        self,
        exchanges: Exchanges,
        *,
        admission: Admission,
        retries: RetryBudget,
        metrics: RouterMetrics,
        write_seconds: float,
        ping_seconds: float,
    ) -> None:
        self._exchanges = exchanges
        self._admission = admission
        self._retries = retries
        self._metrics = metrics
        self._write_seconds = write_seconds
        self._ping_seconds = ping_seconds

    async def serve(
        self,
        request: UpstreamRequest,
        queued: QueuedRequest,
        decision: Decision,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request, or stop at once when the client disconnects, at any point.

        Raises:
            RequestError: no worker answered, and nothing has been sent.
        """
        async with cancel_on_disconnect(receive) as watched:
            with ClientResponse(
                send,
                write_seconds=self._write_seconds,
                ping_seconds=self._ping_seconds if request.stream else None,
                on_stalled=watched.disconnect,
            ) as client:
                await self._answer(request, queued, decision, client)
        if watched.disconnected:
            decision.outcome = "client left"

    async def _answer(
        self, request: UpstreamRequest, queued: QueuedRequest, decision: Decision, client: ClientResponse
    ) -> None:
        try:
            dispatch = await self._admission.submit(queued, decision)
            await self._try_workers(request, decision, dispatch, client)
        except RequestError as error:
            decision.outcome = outcome_of(error)
            if not client.started:
                raise
            await client.refuse(error)

    async def _try_workers(
        self, request: UpstreamRequest, decision: Decision, dispatch: Dispatch, client: ClientResponse
    ) -> None:
        refusal: RequestError | None = None
        try:
            self._retries.request()
            while True:
                attempt = attempt_of(dispatch.picked)
                self._record(decision, dispatch, attempt)
                try:
                    await self._exchanges.run(request, decision, dispatch, client)
                except TryElsewhereError as error:
                    attempt.error = str(error)
                    refusal = error.refusal or refusal
                    self._metrics.on_failed_attempt(decision.model, attempt.status)
                    _log.info(
                        "dispatch failed",
                        request_id=decision.request_id,
                        uid=attempt.uid,
                        reason=attempt.error,
                    )
                else:
                    return
                another = await self._another(decision, dispatch)
                if another is None:
                    raise refusal or no_worker_error(decision.model)
                dispatch = another
        finally:
            dispatch.release()

    def _record(self, decision: Decision, dispatch: Dispatch, attempt: Attempt) -> None:
        """Store a choice before its dispatch: what it predicts cannot know what came of it."""
        if not decision.attempts:
            decision.mode = "precise" if attempt.precise else "load-only"
            self._metrics.on_decision(decision.model, decision.mode, decision.decision_ms / 1e3)
        decision.attempts.append(attempt)
        if dispatch.queued_seconds is not None:
            decision.held_ms = round(dispatch.queued_seconds * 1e3, 3)

    async def _another(self, decision: Decision, failed: Dispatch) -> Dispatch | None:
        if len(decision.attempts) >= MAX_TRIES:
            return None
        if not self._retries.take():
            self._metrics.on_refused_retry()
            _log.warning("retry refused, the budget is spent", request_id=decision.request_id)
            return None
        return await self._admission.retry(failed)


def outcome_of(error: RequestError) -> Outcome:
    """How a request ended that got `error` from the router."""
    return "refused" if error.status == 429 else "failed"


def describe(attempts: Sequence[Attempt]) -> dict[str, object]:
    """Fields of a request's log line about its attempts."""
    if not attempts:
        return {}
    last = attempts[-1]
    return {
        "endpoint": last.endpoint,
        "predicted_cached_tokens": last.predicted_cached_tokens,
        "actual_cached_tokens": last.actual_cached_tokens,
        "tries": len(attempts),
    }
