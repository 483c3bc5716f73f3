"""Who is held: within which bounds, for how long, and what is said to those who may not be.

Held requests are bounded (`queue_bounds`), and so is their wait: who would wait too long is refused at the
door, with the time after which it is worth trying again (`drain`).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.model_queue import ModelQueue
from warmfleet_router.admission.queue_bounds import NOTHING, AdmissionSettings, Amount, BoundedUsage, Exceeded
from warmfleet_router.admission.queued_request import Turn
from warmfleet_router.admission.service_rate import retry_after_seconds
from warmfleet_router.error_responses import overloaded_error, quota_error
from warmfleet_router.metrics import RouterMetrics
from warmfleet_router.tenants import ANONYMOUS

ALWAYS_HELD_REQUESTS: Final = 16
"""So many may wait however slow the fleet is."""


class Hold:
    """The books of all that wait, whatever their model. Whose turn it is, is decided elsewhere."""

    def __init__(
        self, settings: AdmissionSettings, *, now: Callable[[], float], metrics: RouterMetrics
    ) -> None:
        self._settings = settings
        self._now = now
        self._metrics = metrics
        self._held = BoundedUsage(settings.max_held)

    @property
    def total(self) -> Amount:
        return self._held.total

    def check(self, turn: Turn, line: ModelQueue[Turn], amount: Amount) -> None:
        """Refuse what may not wait; `amount` is what would be held.

        Raises:
            RequestError: 429.
        """
        tenant, bound = turn.tenant, self._settings.max_held
        before = line.fair.before(tenant.name, weight=tenant.weight, priority=turn.priority)
        wait_seconds = line.drain.seconds(before.cost, self._now())
        retry_after = retry_after_seconds(wait_seconds)
        match self._held.exceeded(tenant.name, amount, alone=tenant.name == ANONYMOUS.name):
            case Exceeded.WHOLE:
                self._metrics.on_overload("queue_full", tenant.name)
                raise overloaded_error(
                    f"every replica of model {line.model!r} is busy and the queue is full: at most "
                    f"{bound.requests} requests, {bound.body_bytes} bytes, {bound.tokens} tokens",
                    retry_after,
                )
            case Exceeded.TENANT:
                self._metrics.on_overload("tenant_queue", tenant.name)
                held = self._held.held(tenant.name)
                raise quota_error(
                    f"every replica of model {line.model!r} is busy and this key's tenant has its share of "
                    f"the queue: {held.requests} requests, {held.tokens} tokens",
                    retry_after,
                )
            case None:
                pass
        too_long = wait_seconds is not None and wait_seconds > self._settings.max_wait_seconds
        if too_long and before.requests >= ALWAYS_HELD_REQUESTS:
            self._metrics.on_overload("wait", tenant.name)
            raise overloaded_error(
                f"every replica of model {line.model!r} is busy and {before.requests} requests stand before "
                f"this one, more than can be served in {self._settings.max_wait_seconds:g} seconds",
                retry_after,
            )

    def take(self, turn: Turn, line: ModelQueue[Turn]) -> None:
        """`turn` waits from now on, for a bounded time; `turn.future` is done when its wait is over."""
        loop, now = asyncio.get_running_loop(), self._now()
        if turn.prompts is not None:
            turn.prompts.compact()
        line.drain.filled(now)
        turn.future, turn.held_since, turn.held = loop.create_future(), now, turn.size
        self._held.take(turn.tenant.name, turn.held)
        turn.timer = loop.call_later(self._settings.max_held_seconds, self._give_up, turn, line)

    def release(self, turn: Turn, line: ModelQueue[Turn]) -> None:
        """Take `turn` out of the books, however its wait ended."""
        self._held.give_back(turn.tenant.name, turn.held)
        turn.held = NOTHING
        turn.held_seconds += self._now() - turn.held_since
        if turn.timer is not None:
            turn.timer.cancel()
        if turn in line.retries:
            line.retries.remove(turn)
        if turn.waiting is not None:
            line.fair.leave(turn.waiting)
            turn.waiting = None
        if not line.waiting:
            line.drain.emptied(self._now())
        if turn.future is not None and not turn.future.done():
            turn.future.set_result(None)

    def refuse(self, turn: Turn, line: ModelQueue[Turn], error: RequestError) -> None:
        """End a wait with `error`."""
        turn.refusal = error
        self.release(turn, line)

    def _give_up(self, turn: Turn, line: ModelQueue[Turn]) -> None:
        if not turn.is_held:
            return
        self._metrics.on_overload("held_too_long", turn.tenant.name)
        seconds = line.drain.seconds(line.fair.cost, self._now())
        error = overloaded_error(
            f"no replica of model {line.model!r} had room within {self._settings.max_held_seconds:g} seconds",
            retry_after_seconds(seconds),
        )
        self.refuse(turn, line, error)
