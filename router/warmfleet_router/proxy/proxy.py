"""From a routed call to an answer: wait for a worker, try another one, stop when the client leaves."""

from collections.abc import Sequence
from typing import Final

import structlog
from starlette.types import Receive, Send

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.admission import Admission
from warmfleet_router.admission.queued_request import Grant, Turn
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
    """Takes calls to the workers that admission grants, one after the other until one answers."""

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
        self, call: UpstreamRequest, decision: Decision, turn: Turn, receive: Receive, send: Send
    ) -> None:
        """Answer `call`, or stop at once when the client leaves, wherever the request stands.

        Raises:
            RequestError: no worker answered, and nothing has been sent.
        """
        answer = ClientResponse(
            send,
            write_seconds=self._write_seconds,
            ping_seconds=self._ping_seconds if call.stream else None,
        )
        async with cancel_on_disconnect(receive) as client:
            answer.on_stalled = client.disconnect
            with answer:
                await self._answer(call, decision, turn, answer)
        if client.disconnected:
            decision.outcome = "client left"

    async def _answer(
        self, call: UpstreamRequest, decision: Decision, turn: Turn, answer: ClientResponse
    ) -> None:
        try:
            await self._try_workers(call, decision, turn, answer)
        except RequestError as error:
            decision.outcome = outcome_of(error)
            if not answer.started:
                raise
            await answer.refuse(error)

    async def _try_workers(
        self, call: UpstreamRequest, decision: Decision, turn: Turn, answer: ClientResponse
    ) -> None:
        refusal: RequestError | None = None
        grant: Grant | None = await self._admission.granted(turn)
        self._retries.request()
        while grant is not None:
            attempt = attempt_of(grant.choice)
            self._record(call, decision, turn, attempt)
            try:
                await self._exchanges.run(call, decision, turn, grant, answer)
            except TryElsewhereError as error:
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

    def _record(self, call: UpstreamRequest, decision: Decision, turn: Turn, attempt: Attempt) -> None:
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
