"""Has texts tokenized and token ids detokenized: work of a worker's server, for which no engine is needed.

Such a request waits for no seat and teaches nothing about the engine. It shares tickets, breakers and the
retry budget with generations, and a failure counts against its worker; an answer is no sign that the engine
works, so it closes no breaker and is no half-open worker's probe.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

from starlette.types import Receive, Scope, Send

from warmfleet_contracts.openai import RequestError
from warmfleet_contracts.prompts.prompt_size import INLINE_CHARS
from warmfleet_router.access.permission import Permission
from warmfleet_router.admission.encoding_slots import EncodingSlots
from warmfleet_router.admission.in_flight_limits import BufferedAnswer, InFlightTicket
from warmfleet_router.error_responses import no_worker_error, too_large_error, worker_refusal_error
from warmfleet_router.proxy.client_response import ClientResponse
from warmfleet_router.proxy.exchange import RETRIED_STATUSES, TryElsewhereError
from warmfleet_router.proxy.headers import passed_back
from warmfleet_router.proxy.plain_answer import MAX_PLAIN_BODY_BYTES, read_plain_answer
from warmfleet_router.proxy.proxy import MAX_TRIES
from warmfleet_router.proxy.retry_budget import RetryBudget
from warmfleet_router.routing.picker import Picker
from warmfleet_router.workers.breakers import Breakers
from warmfleet_router.workers.fleet import WorkerStatus
from warmfleet_router.workers.upstream import Headers, Upstream, UpstreamError, UpstreamTooLargeError
from warmfleet_runtime.http.disconnect import cancel_on_disconnect
from warmfleet_runtime.http.response_body import response_body

WAIT_SECONDS: Final = 30.0
LARGE_TEXTS: Final = 4
"""So many bodies over `INLINE_CHARS` are at workers at a time: they take CPU time from the engines there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """One request, the same in every attempt."""

    path: str
    model: str
    """For messages."""
    headers: Headers
    body: bytes
    ticket: InFlightTicket
    """By which its answer is counted while it is buffered."""
    permission: Permission | None
    """None: it names no model, and goes to any worker."""


@dataclass(frozen=True, slots=True)
class _TextAnswer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    """The worker's."""
    pieces: Sequence[bytes]


class TextProxy:
    """Takes such requests to the worker with the least to do, and to another one if it does not answer."""

    def __init__(
        self,
        *,
        picker: Picker,
        upstream: Upstream,
        breakers: Breakers,
        retries: RetryBudget,
        write_seconds: float,
    ) -> None:
        self._picker = picker
        self._upstream = upstream
        self._breakers = breakers
        self._retries = retries
        self._write_seconds = write_seconds
        self._slots = EncodingSlots(LARGE_TEXTS)
        self._open: Counter[str] = Counter()
        """Requests at each worker, by uid: load reports do not have them."""
        self._served = 0

    async def serve(
        self,
        request: TextRequest,
        workers: Callable[[], Sequence[WorkerStatus]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request by one of `workers`, as they are then, or stop when the client disconnects.

        Raises:
            RequestError: no worker answered, or the request may not ask one any more; nothing has been sent.
        """
        is_large = len(request.body) > INLINE_CHARS
        async with cancel_on_disconnect(receive) as watched:
            with (
                ClientResponse(
                    send,
                    response_body(scope),
                    write_seconds=self._write_seconds,
                    ping_seconds=None,
                    on_stalled=watched.disconnect,
                ) as client,
                request.ticket.answer() as buffered,
            ):
                # Not while the client reads the answer: that takes no CPU time of a worker.
                async with self._slots.slot(request.ticket.tenant) if is_large else nullcontext():
                    answer = await self._try_workers(request, workers, buffered)
                await client.send_whole(answer.status, passed_back(answer.headers), answer.pieces)

    def _least_loaded(self, workers: Sequence[WorkerStatus], tried: Collection[str]) -> WorkerStatus | None:
        """Of those that are ready, not ejected and not `tried`; equal ones in rotation."""
        fleet = self._picker.snapshot(workers, tried)
        ready = list(fleet.ready.values())
        self._served += 1
        start = self._served % max(len(ready), 1)

        def load(worker: WorkerStatus) -> tuple[int, int, int]:
            uid = worker.endpoint.uid
            return self._open[uid], fleet.loads[uid].sequences, fleet.loads[uid].queued_uncached_tokens

        return min(ready[start:] + ready[:start], key=load, default=None)

    async def _try_workers(
        self, request: TextRequest, workers: Callable[[], Sequence[WorkerStatus]], buffered: BufferedAnswer
    ) -> _TextAnswer:
        refusal: RequestError | None = None
        tried: set[str] = set()
        self._retries.request()
        while len(tried) < MAX_TRIES:
            # Anew for each try: a worker may have gone, or begun another epoch, since the one before.
            worker = self._least_loaded(workers(), tried)
            if worker is None:
                break
            if tried and not self._retries.take():
                break
            if request.permission is not None:
                request.permission.require()
            uid = worker.endpoint.uid
            tried.add(uid)
            self._open[uid] += 1
            try:
                return await self._ask(request, worker, buffered)
            except TryElsewhereError as error:
                refusal = error.refusal or refusal
                buffered.drop()
            finally:
                self._open[uid] -= 1
                if not self._open[uid]:
                    del self._open[uid]
        raise refusal or no_worker_error(request.model)

    async def _ask(self, request: TextRequest, worker: WorkerStatus, buffered: BufferedAnswer) -> _TextAnswer:
        with self._breakers.trial(worker.endpoint.uid, worker.epoch, may_probe=False) as trial:
            try:
                async with self._upstream.request(
                    worker.endpoint,
                    "POST",
                    request.path,
                    headers=request.headers,
                    body=request.body,
                    wait_seconds=WAIT_SECONDS,
                ) as response:
                    status, headers = response.status, response.headers
                    if status in RETRIED_STATUSES:
                        if status not in (429, 503):  # busy or leaving
                            trial.failed(f"the worker answered {status}")
                        refusal = worker_refusal_error(request.model, status, headers.get("retry-after"))
                        raise TryElsewhereError(f"the worker answered {status}", refusal)
                    return _TextAnswer(status, headers, await read_plain_answer(response, buffered))
            except UpstreamTooLargeError as error:
                raise too_large_error(MAX_PLAIN_BODY_BYTES) from error
            except UpstreamError as error:
                trial.failed(str(error))
                raise TryElsewhereError(str(error)) from error
