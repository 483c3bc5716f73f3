"""The order between tenants whose requests wait: start-time fair queueing over virtual token counters.

Each tenant has a counter of the service that it got, in cost (weighted tokens) per weight. The tenant with
the lowest counter is next; within a tenant the lowest priority number, then the earliest arrival.

- Counters instead of rounds, and a cost that is corrected when the true one is known: Sheng et al.,
  Fairness in Serving Large Language Models (VTC), OSDI 2024, arXiv 2401.00588.
- Virtual time, so that absence earns nothing: Goyal, Vin, Cheng, Start-time Fair Queueing, SIGCOMM 1996. It
  is the start tag of the latest request served; a tenant that begins to wait is lifted to it.

Between two tenants that wait throughout an interval, the service each gets there per weight differs by at
most `max cost of one / its weight + max cost of the other / its weight` (Goyal et al., theorem 1), as long as
costs are charged as they are; later corrections shift it by what they correct.
"""

import bisect
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

MAX_IDLE_TENANTS: Final = 1024
"""Counters kept of tenants without a waiting request; beyond it those that owe nothing are dropped."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Waiting(Generic[T]):
    """One request that waits."""

    tenant: str
    priority: int
    arrival: int
    """Rises by one per request of this queue."""
    cost: float
    """What it is expected to cost, in weighted tokens; more than 0."""
    item: T

    @property
    def place(self) -> tuple[int, int]:
        return self.priority, self.arrival


@dataclass(frozen=True, slots=True)
class Before:
    """What is served before a request, estimated from the mean cost of each tenant's requests."""

    requests: int
    cost: float


@dataclass(slots=True)
class _TenantQueue(Generic[T]):
    """One tenant: what it got, and its waiting requests in order."""

    counter: float
    weight: float = 1.0
    waiting: list[Waiting[T]] = field(default_factory=list)
    cost: float = 0.0


class FairQueue(Generic[T]):
    """Requests of many tenants in the order in which they should be served. Pure: no clock, no I/O.

    What `head` returns need not be served: a request that fits no worker now may be passed over.

        waiting = queue.add("tenant", request, weight=1.0, priority=0, cost=300.0)
        queue.serve(queue.head(1)[0], cost=250.0)
        queue.correct("tenant", 20.0)
    """

    def __init__(self) -> None:
        self._tenants: dict[str, _TenantQueue[T]] = {}
        self._virtual_time = 0.0
        self._arrivals = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Waiting[T]]:
        for queue in self._tenants.values():
            yield from queue.waiting

    @property
    def cost(self) -> float:
        """Expected cost of all that wait."""
        return sum(queue.cost for queue in self._tenants.values() if queue.waiting)

    def counter(self, tenant: str) -> float:
        """What `tenant` got so far, in cost per weight; comparable between those that wait."""
        queue = self._tenants.get(tenant)
        return max(queue.counter, self._virtual_time) if queue is not None else self._virtual_time

    def add(self, tenant: str, item: T, *, weight: float, priority: int, cost: float) -> Waiting[T]:
        """Let a request wait."""
        queue = self._tenant(tenant, weight)
        self._arrivals += 1
        waiting = Waiting(tenant, priority, self._arrivals, cost, item)
        bisect.insort(queue.waiting, waiting, key=_place)
        queue.cost += cost
        self._count += 1
        return waiting

    def leave(self, waiting: Waiting[T]) -> None:
        """Take out a request that was not served. Idempotent."""
        queue = self._tenants.get(waiting.tenant)
        if queue is None:
            return
        position = bisect.bisect_left(queue.waiting, waiting.place, key=_place)
        if position < len(queue.waiting) and queue.waiting[position] is waiting:
            del queue.waiting[position]
            queue.cost -= waiting.cost
            self._count -= 1

    def serve(self, waiting: Waiting[T], cost: float) -> None:
        """Take out a request that is served and charge its tenant `cost`."""
        queue = self._tenants[waiting.tenant]
        self.leave(waiting)
        self._charge(queue, cost)

    def serve_at_once(self, tenant: str, *, weight: float, cost: float) -> None:
        """Charge a request that is served without waiting, while no other request waits."""
        queue = self._tenant(tenant, weight)
        self._charge(queue, cost)
        if not self._count:
            # No tenant went short: the busy period is over, and service taken in it is no debt (SFQ, rule 2).
            self._virtual_time = max(self._virtual_time, queue.counter)

    def correct(self, tenant: str, difference: float) -> None:
        """Add what a request of `tenant` cost beyond what was charged; negative gives back."""
        queue = self._tenants.get(tenant)
        if queue is not None:
            queue.counter += difference / queue.weight

    def head(self, limit: int) -> list[Waiting[T]]:
        """The next `limit` requests in the order in which they would be served."""
        heap = [(queue.counter, name, 0) for name, queue in self._tenants.items() if queue.waiting]
        heapq.heapify(heap)
        head: list[Waiting[T]] = []
        while heap and len(head) < limit:
            counter, name, position = heap[0]
            queue = self._tenants[name]
            waiting = queue.waiting[position]
            head.append(waiting)
            if position + 1 < len(queue.waiting):
                heapq.heapreplace(heap, (counter + waiting.cost / queue.weight, name, position + 1))
            else:
                heapq.heappop(heap)
        return head

    def before(self, tenant: str, *, weight: float, priority: int) -> Before:
        """What would be served before one more request of `tenant`.

        Of its own what is not less urgent, and of every other tenant what fits under the counter that it
        will have then.
        """
        own = self._tenants.get(tenant)
        cost, requests = 0.0, 0.0
        if own is not None and own.waiting:
            last = own.waiting[-1]
            requests = bisect.bisect_right(own.waiting, (priority, self._arrivals), key=_place)
            all_are_before = last.priority <= priority
            cost = own.cost if all_are_before else own.cost * requests / len(own.waiting)
        start = self.counter(tenant) + cost / weight
        for name, queue in self._tenants.items():
            if name != tenant and queue.waiting:
                share = min(queue.cost, max(start - queue.counter, 0.0) * queue.weight)
                cost += share
                requests += len(queue.waiting) * share / queue.cost
        return Before(requests=round(requests), cost=cost)

    def _tenant(self, tenant: str, weight: float) -> _TenantQueue[T]:
        queue = self._tenants.get(tenant)
        if queue is None:
            if len(self._tenants) >= MAX_IDLE_TENANTS:
                self._forget_idle()
            queue = self._tenants[tenant] = _TenantQueue(self._virtual_time)
        if not queue.waiting:
            # Absence earns nothing: neither a fresh tenant nor one that was away starts below the others.
            queue.counter = max(queue.counter, self._virtual_time)
            queue.weight = weight
            queue.cost = 0.0
        return queue

    def _charge(self, queue: _TenantQueue[T], cost: float) -> None:
        self._virtual_time = max(self._virtual_time, queue.counter)
        queue.counter += cost / queue.weight

    def _forget_idle(self) -> None:
        owing = {
            name: queue
            for name, queue in self._tenants.items()
            if queue.waiting or queue.counter > self._virtual_time
        }
        if len(owing) >= MAX_IDLE_TENANTS:
            owing = {name: queue for name, queue in owing.items() if queue.waiting}
        self._tenants = owing


def _place(waiting: Waiting[Any]) -> tuple[int, int]:
    return waiting.place
