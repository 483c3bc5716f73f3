"""One request's place in the router, from the door to its end."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import msgspec

from warmfleet_contracts.cache.worker_api import HIGHEST_PRIORITY
from warmfleet_contracts.openai import RequestError
from warmfleet_router.admission.fair_queue import Waiting
from warmfleet_router.admission.model_queue import ModelQueue
from warmfleet_router.admission.queue_bounds import NOTHING, Amount
from warmfleet_router.routing.leases import Lease
from warmfleet_router.routing.picker import PickedWorker
from warmfleet_router.routing.prompt_hashes import RequestPrompts
from warmfleet_router.tenants import Tenant


class Grant(msgspec.Struct, frozen=True):
    """A worker with room, charged already: the lease is open."""

    choice: PickedWorker
    lease: Lease


@dataclass(slots=True, eq=False, kw_only=True)
class Turn:
    """What admission knows of one request; `with` gives back whatever it holds, however it ends."""

    tenant: Tenant
    on_end: Callable[["Turn"], None]
    started: float
    taken: Amount = NOTHING
    """Its part of what is in flight."""

    # What it asks, once the body is decoded.
    line: ModelQueue["Turn"] | None = None
    sequences: int = 1
    priority: int = 0
    output_limit_tokens: int | None = None
    prompts: RequestPrompts | None = None
    prompt_tokens: int = 0

    # While it is held.
    held: Amount = NOTHING
    waiting: Waiting["Turn"] | None = None
    future: "asyncio.Future[None] | None" = None
    timer: asyncio.TimerHandle | None = None
    held_since: float = 0.0
    refusal: RequestError | None = None

    # What the decision record tells of it.
    held_seconds: float = 0.0
    held_behind: int | None = None
    """Requests that would be served before it when it began to wait; None if it never did."""
    held_because: str = ""

    # Once it has a worker.
    grant: Grant | None = None
    """Granted and not taken yet."""
    lease: Lease | None = None
    seats: int = 0
    bypasses: bool = False
    """It goes before what the worker was sent already, by one step of priority."""
    tried: set[str] = field(default_factory=set)
    uncached_tokens: int = 0
    charged_cost: float | None = None
    output_tokens: int = 0
    """What was generated so far; whoever passes the answer on counts."""
    completed: bool = False

    @property
    def size(self) -> Amount:
        """What it takes up while it is held."""
        return Amount(1, self.taken.body_bytes, self.prompt_tokens)

    @property
    def sent_priority(self) -> int:
        """What the worker is told."""
        return max(self.priority - self.bypasses, HIGHEST_PRIORITY)

    @property
    def is_held(self) -> bool:
        return self.future is not None and not self.future.done()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.on_end(self)
