"""The HTTP request that a worker gets for a client's request."""

from dataclasses import dataclass

from warmfleet_router.access.permission import Permission
from warmfleet_router.admission.in_flight_limits import InFlightTicket
from warmfleet_router.workers.upstream import Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """What is the same in every attempt at one request."""

    path: str
    stream: bool
    body: bytes
    headers: Headers
    """The client's, without those that end at the router."""
    permission: Permission
    """Asked before each attempt: it may have waited."""
    ticket: InFlightTicket
    """By which its answer is counted while it is buffered."""
    salt: bytes
    seed: int | None
    """Drawn by the router for a request without one; None where the body has its own."""
    role_events: int = 0
    """Events at a stream's start that come before the prefill is done: chat sends the role on admission."""
