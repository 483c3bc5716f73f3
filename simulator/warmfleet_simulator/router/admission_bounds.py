"""How much a simulated fleet admits: its one router stands for as many as a real fleet of its size has.

A router bounds what it keeps for its clients by its own memory, not by the number of replicas.
"""

from dataclasses import replace
from typing import Final

from warmfleet_router.admission.queue_bounds import AdmissionSettings, Amount

REPLICAS_PER_ROUTER: Final = 100


def bounds_of_fleet(one: AdmissionSettings, replicas: int) -> AdmissionSettings:
    """The bounds of all routers of a fleet, of which `one` has those of a single router."""
    routers = max(-(-replicas // REPLICAS_PER_ROUTER), 1)
    return replace(
        one, max_in_flight=_times(one.max_in_flight, routers), max_held=_times(one.max_held, routers)
    )


def _times(amount: Amount, routers: int) -> Amount:
    return Amount(amount.requests * routers, amount.buffered_bytes * routers, amount.tokens * routers)
