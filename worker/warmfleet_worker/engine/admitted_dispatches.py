"""The newest dispatch of each router that has arrived at an engine."""

from collections import OrderedDict

from warmfleet_contracts.cache.kv_events import MAX_REPORTED_ROUTERS, MAX_ROUTER_ID_CHARS


class AdmittedDispatches:
    """The highest dispatch of each router, as a load report has them.

    Of more than `MAX_REPORTED_ROUTERS` the one that has sent nothing for longest is dropped.

    admitted.count("router-0", 7)
    LoadReport(admitted_dispatches=admitted.by_router())
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
