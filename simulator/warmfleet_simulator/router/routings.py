"""How a simulated fleet is routed: the router's policies, and one of a router that sees no events."""

from dataclasses import dataclass
from typing import Final

from warmfleet_router.routing.policies import POLICIES
from warmfleet_simulator.errors import UnknownNameError

APPROXIMATE_PREFIX: Final = "ApproximatePrefix"


@dataclass(frozen=True, slots=True)
class Routing:
    """A way to route."""

    policy: str
    """Of the production router."""
    sees_events: bool = True
    """Whether the index follows the workers' events; otherwise what the router remembers to have sent."""


ROUTINGS: Final[dict[str, Routing]] = {
    **{name: Routing(name) for name in POLICIES},
    APPROXIMATE_PREFIX: Routing("LowestCost", sees_events=False),
}


def routing_of(name: str) -> Routing:
    """The routing of that name.

    Raises:
        UnknownNameError: there is none.
    """
    if name not in ROUTINGS:
        raise UnknownNameError("routing", name, ROUTINGS)
    return ROUTINGS[name]
