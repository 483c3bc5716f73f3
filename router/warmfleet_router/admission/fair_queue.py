"""Whose turn it is among the tenants that wait: start-time fair queueing over virtual token counters.

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
"""Counters remembered of tenants of whom nobody waits; beyond it those that owe nothing go."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Waiting(Generic[T]):
    """One request in line."""

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
    """What stands before a request, estimated from the mean cost in each line."""

    requests: int
    cost: float


@dataclass(slots=True)
class _Line(Generic[T]):
    """One tenant: what it got, and who waits for it, in order."""

    counter: float
    weight: float = 1.0
    waiting: list[Waiting[T]] = field(default_factory=list)
    cost: float = 0.0


class FairQueue(Generic[T]):
    """Requests of many tenants in the order in which they should be served. Pure: no clock, no I/O.

    Who is asked for by `head` need not be served: one that cannot be now may be passed over.
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line[T]] = {}
        self._virtual_time = 0.0
        self._arrivals = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Waiting[T]]:
        for line in self._lines.values():
            yield from line.waiting

    @property
    def cost(self) -> float:
        """Expected cost of all that wait."""
        return sum(line.cost for line in self._lines.values() if line.waiting)

    def counter(self, tenant: str) -> float:
        """What `tenant` got so far, in cost per weight; comparable between those that wait."""
        line = self._lines.get(tenant)
        return max(line.counter, self._virtual_time) if line is not None else self._virtual_time

    def waiting(self, tenant: str) -> int:
        """Requests of `tenant` in line."""
        line = self._lines.get(tenant)
        return len(line.waiting) if line is not None else 0

    def add(self, tenant: str, item: T, *, weight: float, priority: int, cost: float) -> Waiting[T]:
        """Put a request in line."""
        line = self._line(tenant, weight)
        self._arrivals += 1
        waiting = Waiting(tenant, priority, self._arrivals, cost, item)
        bisect.insort(line.waiting, waiting, key=_place)
        line.cost += cost
        self._count += 1
        return waiting

    def leave(self, waiting: Waiting[T]) -> None:
        """Take a request out of the line that was not served. Idempotent."""
        line = self._lines.get(waiting.tenant)
        if line is None:
            return
        position = bisect.bisect_left(line.waiting, waiting.place, key=_place)
        if position < len(line.waiting) and line.waiting[position] is waiting:
            del line.waiting[position]
            line.cost -= waiting.cost
            self._count -= 1

    def serve(self, waiting: Waiting[T], cost: float) -> None:
        """Take a request out of the line and charge its tenant `cost`."""
        line = self._lines[waiting.tenant]
        self.leave(waiting)
        self._charge(line, cost)

    def serve_at_once(self, tenant: str, *, weight: float, cost: float) -> None:
        """Charge a request that found nobody waiting and did not have to wait either."""
        line = self._line(tenant, weight)
        self._charge(line, cost)
        if not self._count:
            # Nobody went short: the busy period is over, and what was taken in it is no debt (SFQ, rule 2).
            self._virtual_time = max(self._virtual_time, line.counter)

    def correct(self, tenant: str, difference: float) -> None:
        """Add what a request of `tenant` cost beyond what was charged; negative gives back."""
        line = self._lines.get(tenant)
        if line is not None:
            line.counter += difference / line.weight

    def head(self, limit: int) -> list[Waiting[T]]:
        """The next `limit` requests in the order in which they would be served."""
        heap = [(line.counter, name, 0) for name, line in self._lines.items() if line.waiting]
        heapq.heapify(heap)
        head: list[Waiting[T]] = []
        while heap and len(head) < limit:
            counter, name, position = heap[0]
            line = self._lines[name]
            waiting = line.waiting[position]
            head.append(waiting)
            if position + 1 < len(line.waiting):
                heapq.heapreplace(heap, (counter + waiting.cost / line.weight, name, position + 1))
            else:
                heapq.heappop(heap)
        return head

    def before(self, tenant: str, *, weight: float, priority: int) -> Before:
        """What would be served before one more request of `tenant`.

        Of its own what is not less urgent, and of every other tenant what fits under the counter that it
        will have then.
        """
        own = self._lines.get(tenant)
        cost, requests = 0.0, 0.0
        if own is not None and own.waiting:
            last = own.waiting[-1]
            requests = bisect.bisect_right(own.waiting, (priority, self._arrivals), key=_place)
            all_are_before = last.priority <= priority
            cost = own.cost if all_are_before else own.cost * requests / len(own.waiting)
        start = self.counter(tenant) + cost / weight
        for name, line in self._lines.items():
            if name != tenant and line.waiting:
                share = min(line.cost, max(start - line.counter, 0.0) * line.weight)
                cost += share
                requests += len(line.waiting) * share / line.cost
        return Before(requests=round(requests), cost=cost)

    def _line(self, tenant: str, weight: float) -> _Line[T]:
        line = self._lines.get(tenant)
        if line is None:
            if len(self._lines) >= MAX_IDLE_TENANTS:
                self._forget_idle()
            line = self._lines[tenant] = _Line(self._virtual_time)
        if not line.waiting:
            # Absence earns nothing: neither a fresh tenant nor one that was away starts below the others.
            line.counter = max(line.counter, self._virtual_time)
            line.weight = weight
            line.cost = 0.0
        return line

    def _charge(self, line: _Line[T], cost: float) -> None:
        self._virtual_time = max(self._virtual_time, line.counter)
        line.counter += cost / line.weight

    def _forget_idle(self) -> None:
        owing = {
            name: line
            for name, line in self._lines.items()
            if line.waiting or line.counter > self._virtual_time
        }
        if len(owing) >= MAX_IDLE_TENANTS:
            owing = {name: line for name, line in owing.items() if line.waiting}
        self._lines = owing


def _place(waiting: Waiting[Any]) -> tuple[int, int]:
    return waiting.place
