"""The dispatches of each router at an engine: the newest that has arrived, and how many are open."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from warmfleet_contracts.cache.kv_events import MAX_REPORTED_ROUTERS, MAX_ROUTER_ID_CHARS


class Dispatch(NamedTuple):
    """What a router sent at once: one request, of one or more sequences."""

    router_id: str
    number: int
    """Counted by its router."""


NO_DISPATCH: Final = Dispatch("", 0)
"""Of a request that no router sent."""


class AdmittedDispatches:
    """The highest dispatch of each router, and how many of them are open, as a load report has them.

    Of more than `MAX_REPORTED_ROUTERS` the one that has sent nothing for longest is dropped.

    admitted.count("router-0", 7)
    LoadReport(admitted_dispatches=admitted.by_router(), open_dispatches=admitted.open_by_router(counted))
    """

    def __init__(self) -> None:
        self._highest: OrderedDict[str, int] = OrderedDict()

    def count(self, router_id: str, dispatch: int) -> None:
        """A dispatch of a router has arrived. One without a valid id of its router counts for none."""
        if not 0 < len(router_id) <= MAX_ROUTER_ID_CHARS:
            return
        self._highest[router_id] = max(self._highest.get(router_id, 0), dispatch)
        self._highest.move_to_end(router_id)
        if len(self._highest) > MAX_REPORTED_ROUTERS:
            self._highest.popitem(last=False)

    def by_router(self) -> dict[str, int]:
        """The highest of each, as it is now."""
        return dict(self._highest)

    def open_by_router(self, counted: Iterable[Dispatch]) -> dict[str, int]:
        """How many of each router's have sequences that a report counts: `counted` has that of each."""
        opened = Counter(dispatch.router_id for dispatch in set(counted))
        return {router_id: number for router_id, number in opened.items() if router_id in self._highest}
