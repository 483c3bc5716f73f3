"""Holds the requests of a model that sleeps until a worker is ready, and then lets them go on in turn.

A model that may sleep and has no ready worker is asleep. Its requests are not encoded yet, because only a
worker has the tokenizer; here they count by the size of their bodies. What is held is bounded
(`queue_bounds`), and so is its time. By what is `reported` the operator wakes the fleet.

When a worker is ready requests go on in fair order, and while some are held those that come wait behind them.
At most `RELEASED_REQUESTS` of a model are between here and a worker, and no more are encoded at once than
there are threads for it. So the rest follows as fast as workers have seats, and the next queue refuses none
for its estimated wait.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.fair_queue import FairQueue
from warmfleet_router.admission.model_queue import PRIOR_OUTPUT_TOKENS, cost_of
from warmfleet_router.admission.queue_bounds import Amount, BoundedUsage, Exceeded
from warmfleet_router.admission.wait_queue import STANDING_REQUESTS
from warmfleet_router.error_responses import (
    RETRY_AFTER_SECONDS,
    asleep_error,
    overloaded_error,
    quota_error,
)
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.tenants import Tenant
from warmfleet_router.workers.encoders import ENCODING_THREADS
from warmfleet_router.workers.fleet import WorkerStatus

RELEASED_REQUESTS: Final = STANDING_REQUESTS
"""With fewer before it the next queue refuses no request for its estimated wait."""
TOKENIZER_SECONDS: Final = 5.0
"""How long requests wait for the tokenizer of a worker that is ready: without it they go by load only."""
REPORTED_SECONDS: Final = 5.0
"""A request that came and left, or may not be held, is reported for so long: the operator asks every second
or two."""
ASLEEP_RETRY_SECONDS: Final = 5
TICK_SECONDS: Final = 0.25
"""A tokenizer arrives without an event."""

_log = structlog.get_logger("warmfleet.router.admission")


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """One request; `released` ends its wait, with an error if it may not go on."""

    model: str
    tokens: int
    since: float
    released: "asyncio.Future[None]"


@dataclass(slots=True, eq=False)
class _SleepingModel:
    """What is held for one model."""

    held: FairQueue[_Held] = field(default_factory=FairQueue)
    encoding: set[_Held] = field(default_factory=set)
    """Those that were let on and are not in the next queue yet."""
    asked_at: float = 0.0
    """When the last request came that found the model asleep."""
    ready_since: float | None = None
    hold_seconds: float = 0.0
    """How long its requests may be held; the last that is known, where it may not sleep any more."""


class WakingQueue:
    """Requests of sleeping models, over all models. Serves between `start` and `stop`.

    while waking.holds(model):
        async with waking.turn(model, tenant, priority=0, size=size, since=since):
            ...  # encode the prompt
    """

    def __init__(
        self,
        bound: Amount,
        *,
        hold_seconds: Callable[[str], float | None],
        workers: Callable[[str], Sequence[WorkerStatus]],
        is_settled: Callable[[str], bool],
        queued: Callable[[str], int],
        now: Callable[[], float],
        metrics: RouterMetrics,
    ) -> None:
        """`hold_seconds` returns how long a model's requests may be held; None for one that may not sleep.

        `workers` returns those of a model; `is_settled` whether a tokenizer, by digest, is known or will
        never be; `queued` how many of a model's requests wait in the next queue.
        """
        self.hold_seconds = hold_seconds
        self.is_draining = False
        """Whether the router is about to end: it holds nothing any more."""
        self._workers = workers
        self._is_settled = is_settled
        self._queued = queued
        self._now = now
        self._metrics = metrics
        self._held = BoundedUsage(bound)
        self._models: dict[str, _SleepingModel] = {}
        self._filled = asyncio.Event()
        """Set while a request is held."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to let requests on; returns at once."""
        self._task = asyncio.create_task(self._run(), name="waking queue")

    async def stop(self) -> None:
        """End that."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def is_asleep(self, model: str) -> bool:
        """Whether a model that may sleep has no ready worker."""
        if self.hold_seconds(model) is None:
            return False
        return not any(worker.ready for worker in self._workers(model))

    def holds(self, model: str, *, was_held: bool = False) -> bool:
        """Whether a request for `model` has to wait: it sleeps, or, unless it was held itself, others do."""
        return self.is_asleep(model) or (not was_held and self.holds_any(model))

    def holds_any(self, model: str) -> bool:
        """Whether any request for `model` is held now."""
        sleeping = self._models.get(model)
        return sleeping is not None and len(sleeping.held) > 0

    @property
    def total(self) -> Amount:
        """What is held now, over all models."""
        return self._held.total

    def held_by_model(self) -> dict[str, tuple[int, int]]:
        """Requests and prompt tokens that are held, by model, for each model that was asleep before."""
        return {
            model: (len(sleeping.held), sum(waiting.item.tokens for waiting in sleeping.held))
            for model, sleeping in self._models.items()
        }

    def reported(self) -> dict[str, tuple[int, int]]:
        """As `held_by_model`, and at least one request for each model that was just asked for asleep."""
        held = self.held_by_model()
        for model, sleeping in self._models.items():
            if not len(sleeping.held) and self._now() - sleeping.asked_at < REPORTED_SECONDS:
                held[model] = (1, 0) if self.is_asleep(model) else (0, 0)
        return held

    @contextlib.asynccontextmanager
    async def turn(
        self, model: str, tenant: Tenant, *, priority: int, size: Amount, since: float
    ) -> AsyncGenerator[None, None]:
        """Wait until a request may go on; in the block it is encoded, and after it enters the next queue.

        `since` is the clock time at which its wait began. A cancelled wait gives back its place.

        Raises:
            RequestError: there is no room for it (429); no worker was ready in time, or the router is about
                to end (503).
        """
        sleeping = self._models.setdefault(model, _SleepingModel())
        if self.is_asleep(model):
            sleeping.asked_at = self._now()
        self._check(model, tenant, size)
        held = _Held(model, size.tokens, since, asyncio.get_running_loop().create_future())
        try:
            await self._wait(sleeping, held, tenant, priority, size)
            self._metrics.on_awake(model, self._now() - since)
            yield
        finally:
            sleeping.encoding.discard(held)
            self.look()

    def look(self) -> None:
        """Workers, or what waits for them, have changed: let requests on that may."""
        self._changed.set()

    def drain(self) -> None:
        """The router is about to end: refuse what is held and what would be. Another router may take it."""
        self.is_draining = True
        for model, sleeping in self._models.items():
            for waiting in list(sleeping.held):
                self._refuse(waiting.item, self._ending_error(model))

    def keep_models(self, models: Collection[str]) -> None:
        """Drop what is kept of other models, but for those of which requests are held."""
        gone = [
            model
            for model, sleeping in self._models.items()
            if model not in models and not len(sleeping.held) and not sleeping.encoding
        ]
        for model in gone:
            del self._models[model]

    def _check(self, model: str, tenant: Tenant, size: Amount) -> None:
        if self.is_draining:
            raise self._ending_error(model)
        bound = self._held.bound
        match self._held.exceeded(tenant.name, size, alone=tenant.is_alone):
            case Exceeded.WHOLE:
                self._metrics.on_overload("waking_full", tenant.name)
                raise overloaded_error(
                    f"model {model!r} is asleep, and no more requests are held until it wakes: at most "
                    f"{bound.requests} requests, {bound.buffered_bytes} bytes, {bound.tokens} tokens",
                    ASLEEP_RETRY_SECONDS,
                )
            case Exceeded.TENANT:
                self._metrics.on_overload("tenant_waking", tenant.name)
                mine = self._held.held(tenant.name)
                raise quota_error(
                    f"model {model!r} is asleep, and this key's tenant has its share of what is held until "
                    f"it wakes: {mine.requests} requests, {mine.tokens} tokens",
                    ASLEEP_RETRY_SECONDS,
                )
            case None:
                pass

    async def _wait(
        self, sleeping: _SleepingModel, held: _Held, tenant: Tenant, priority: int, size: Amount
    ) -> None:
        known_seconds = self.hold_seconds(held.model)
        if known_seconds is not None:
            sleeping.hold_seconds = known_seconds
        hold_seconds = sleeping.hold_seconds
        left_seconds = hold_seconds - (self._now() - held.since)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(max(left_seconds, 0.0), self._give_up, held, tenant, hold_seconds)
        cost = cost_of(size.tokens, PRIOR_OUTPUT_TOKENS)
        waiting = sleeping.held.add(tenant.name, held, weight=tenant.weight, priority=priority, cost=cost)
        self._held.take(tenant.name, size)
        self._filled.set()
        self.look()
        try:
            await held.released
        finally:
            timer.cancel()
            sleeping.held.leave(waiting)
            self._held.give_back(tenant.name, size)
            if not self._held.total.requests:
                self._filled.clear()

    def _give_up(self, held: _Held, tenant: Tenant, hold_seconds: float) -> None:
        if not held.released.done():
            self._metrics.on_overload("waking_too_long", tenant.name)
            reason = f"was asleep and not ready to answer within {hold_seconds:g} seconds"
            self._refuse(
                held, asleep_error(held.model, reason, self._missing(held.model), ASLEEP_RETRY_SECONDS)
            )

    def _refuse(self, held: _Held, error: RequestError) -> None:
        if not held.released.done():
            held.released.set_exception(error)

    def _ending_error(self, model: str) -> RequestError:
        reason = "is not ready to answer, and this router is about to end"
        return asleep_error(model, reason, self._missing(model), RETRY_AFTER_SECONDS)

    def _missing(self, model: str) -> str:
        """What a model lacks to answer."""
        workers = self._workers(model)
        if not workers:
            return "no replica has been started yet"
        ready = sum(worker.ready for worker in workers)
        if not ready:
            return f"replicas that have been started: {len(workers)}, of them ready: none"
        return f"replicas that are ready: {ready}, busy with requests that came before"

    async def _run(self) -> None:
        while True:
            await self._filled.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            for model, sleeping in self._models.items():
                try:
                    self._release(model, sleeping)
                except Exception:  # noqa: BLE001
                    # A fault must not end the service of all models.
                    _log.exception("held requests not let on, the next event tries again", model=model)

    def _release(self, model: str, sleeping: _SleepingModel) -> None:
        """Let on as many as may, in fair order."""
        if not len(sleeping.held) or not self._may_go_on(model, sleeping):
            return
        room = min(
            ENCODING_THREADS - len(sleeping.encoding),
            RELEASED_REQUESTS - len(sleeping.encoding) - self._queued(model),
        )
        for waiting in sleeping.held.head(max(room, 0)):
            held = waiting.item
            sleeping.held.serve(waiting, waiting.cost)
            if not held.released.done():  # it may be cancelled, and about to leave
                sleeping.encoding.add(held)
                held.released.set_result(None)

    def _may_go_on(self, model: str, sleeping: _SleepingModel) -> bool:
        """Whether the next queue can take requests: a worker is ready and its tokenizer is known.

        Those of a model that may not sleep any more, or is gone, go on to be refused there.
        """
        if self.is_asleep(model):
            sleeping.ready_since = None
            return False
        if sleeping.ready_since is None:
            sleeping.ready_since = self._now()
        if self._now() - sleeping.ready_since >= TOKENIZER_SECONDS:
            return True
        digests = [
            worker.hello.tokenizer_digest
            for worker in self._workers(model)
            if worker.ready and worker.hello is not None
        ]
        return not digests or any(map(self._is_settled, digests))
