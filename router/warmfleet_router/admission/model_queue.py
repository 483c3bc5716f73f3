"""The requests that wait for the workers of one model, how fast they are served, and how long answers are."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from warmfleet_router.admission.dispatch import Dispatch
from warmfleet_router.admission.fair_queue import Before, FairQueue, Waiting
from warmfleet_router.admission.fair_share import FairShare
from warmfleet_router.admission.placement import Placement
from warmfleet_router.admission.queue_bypass import Prefills
from warmfleet_router.admission.queued_request import QueuedRequest
from warmfleet_router.admission.service_rate import ServiceRate
from warmfleet_router.tenants import Tenant

OUTPUT_WEIGHT: Final = 2.0
"""Cost of a generated token in prompt tokens that are computed (VTC, section 4.1: w_q = 2, w_p = 1)."""
PRIOR_OUTPUT_TOKENS: Final = 128.0
"""Expected length of an answer while none has ended."""
OUTPUT_EWMA_WEIGHT: Final = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class WaitingRequest:
    """A request in its model's queue; `assigned` ends its wait with a dispatch or an error."""

    request: QueuedRequest
    since: float
    """Clock time in seconds."""
    failed: Dispatch | None
    """The dispatch that this wait is a retry of; None for a request that had no worker yet."""
    assigned: "asyncio.Future[Dispatch]"

    @property
    def tried(self) -> frozenset[str]:
        """Uids of workers that are not asked again."""
        return self.failed.tried if self.failed is not None else frozenset()


class Wish(msgspec.Struct, frozen=True):
    """Which worker a waiting request waits for, as it was priced over all workers."""

    placement: Placement
    since: float
    """Clock time in seconds at which it was priced."""
    declines_since: float | None = None
    """Clock time in seconds since when other workers had capacity; None if none had yet."""


class ModelQueue:
    """One model's queue. Retries come first: the fair order has chosen them before."""

    def __init__(self, model: str, now: Callable[[], float]) -> None:
        self.model = model
        self.service_rate = ServiceRate()
        self.shares = FairShare(now)
        self.prefills = Prefills()
        self._now = now
        self._fair: FairQueue[WaitingRequest] = FairQueue()
        self._retries: list[WaitingRequest] = []
        self._places: dict[WaitingRequest, Waiting[WaitingRequest]] = {}
        """Of the requests in fair order."""
        self._wishes: dict[WaitingRequest, Wish] = {}
        self._output_tokens = PRIOR_OUTPUT_TOKENS

    @property
    def waiting(self) -> int:
        """Requests that wait, retries included."""
        return len(self._fair) + len(self._retries)

    @property
    def waiting_retries(self) -> int:
        """Those of them that have had a worker, and go before all others."""
        return len(self._retries)

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or is at a worker."""
        return not self.waiting and not self.shares.is_used

    def __iter__(self) -> Iterator[WaitingRequest]:
        """Every request that waits, in no order."""
        yield from self._retries
        yield from self._places

    def head(self, limit: int) -> Sequence[WaitingRequest]:
        """All retries and the next `limit` other requests, in the order in which they should be served."""
        return [*self._retries, *(waiting.item for waiting in self._fair.head(limit))]

    def before(self, tenant: Tenant, priority: int) -> Before:
        """What would be served before one more request of `tenant`."""
        return self._fair.before(tenant.name, weight=tenant.weight, priority=priority)

    @property
    def waiting_cost(self) -> float:
        """Expected cost of all that wait in fair order."""
        return self._fair.cost

    def received_by(self, tenant: str) -> float:
        """What `tenant` got so far, in cost per weight; comparable between tenants that wait."""
        return self._fair.counter(tenant)

    def add(self, waiting: WaitingRequest) -> None:
        """Put a request in its fair place, a retry in front."""
        self.service_rate.filled(self._now())
        if waiting.failed is not None:
            self._retries.append(waiting)
            return
        request = waiting.request
        self._places[waiting] = self._fair.add(
            request.tenant.name,
            waiting,
            weight=request.tenant.weight,
            priority=request.priority,
            cost=self.expected_cost(request, request.prompt_tokens),
        )

    def wish(self, waiting: WaitingRequest, placement: Placement) -> None:
        """Keep which worker a request waits for, until it leaves the queue."""
        now, before = self._now(), self._wishes.get(waiting)
        declines_since = before.declines_since if before is not None else None
        if declines_since is None and placement.declines:
            declines_since = now
        self._wishes[waiting] = Wish(placement, now, declines_since)

    def wish_of(self, waiting: WaitingRequest) -> Wish | None:
        """The latest wish of a request; None before its first."""
        return self._wishes.get(waiting)

    def declined_seconds(self, waiting: WaitingRequest) -> float:
        """For how long a request waits although other workers have had capacity."""
        wish = self._wishes.get(waiting)
        since = wish.declines_since if wish is not None else None
        return self._now() - since if since is not None else 0.0

    def remove(self, waiting: WaitingRequest) -> bool:
        """Take out a request that was not served; False if it is not here."""
        self._wishes.pop(waiting, None)
        place = self._places.pop(waiting, None)
        if place is not None:
            self._fair.leave(place)
        elif waiting in self._retries:
            self._retries.remove(waiting)
        else:
            return False
        self._note_if_empty()
        return True

    def serve(self, waiting: WaitingRequest, cost: float) -> None:
        """Take out a request that gets its first worker, and charge its tenant `cost`."""
        self._wishes.pop(waiting, None)
        place, now = self._places.pop(waiting), self._now()
        self.service_rate.served(place.cost, now, waited_seconds=now - waiting.since)
        self._fair.serve(place, cost)
        self._note_if_empty()

    def serve_at_once(self, request: QueuedRequest, cost: float) -> None:
        """Charge the tenant of a request that gets a worker without waiting."""
        self._fair.serve_at_once(request.tenant.name, weight=request.tenant.weight, cost=cost)

    def correct(self, tenant: str, difference: float) -> None:
        """Charge `tenant` what a request cost beyond what was charged; negative gives back."""
        self._fair.correct(tenant, difference)

    def expected_cost(self, request: QueuedRequest, uncached_tokens: int) -> float:
        """What a request will probably cost its tenant."""
        expected = self.expected_output_tokens(request.output_limit_tokens, request.sequences)
        return cost_of(uncached_tokens, expected)

    def expected_output_tokens(self, limit_tokens: int | None, sequences: int) -> float:
        """What recent answers took, at most what is asked for, over all sequences."""
        expected = self._output_tokens if limit_tokens is None else min(self._output_tokens, limit_tokens)
        return expected * sequences

    def observe_output(self, tokens: int, sequences: int) -> None:
        """An answer of so many tokens was completed."""
        self._output_tokens += OUTPUT_EWMA_WEIGHT * (tokens / sequences - self._output_tokens)

    def _note_if_empty(self) -> None:
        if not self.waiting:
            self.service_rate.emptied(self._now())


def cost_of(uncached_tokens: int, output_tokens: float) -> float:
    """What a request costs its tenant, in prompt tokens that are computed; at least 1."""
    return max(uncached_tokens + OUTPUT_WEIGHT * output_tokens, 1.0)
