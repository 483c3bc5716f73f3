"""One client request, decoded and ready to be dispatched."""

from dataclasses import dataclass

from warmfleet_router.routing.prompt_hashes import RequestPrompts
from warmfleet_router.workers.upstream import Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """What every dispatch of one request repeats."""

    path: str
    model: str
    stream: bool
    body: bytes
    headers: Headers
    """The client's, without those that end at the router."""
    prompts: RequestPrompts
    salt: bytes
    seed: int | None
    """Drawn by the router for a request without one; None where the body has its own."""
    started: float
    """On the leases' clock, when the body was complete."""
    silent_events: int = 0
    """Events at a stream's start that say nothing of the prefill: chat sends the role on admission."""
