"""Suspects that are computed alone: their worker gets no other request before their first token.

A suspect is a request that may have ended an engine (`proxy/crash_suspects`). An engine's end counts against
every prompt that it was computing, so that who can end engines could have another's request refused by
sending more to its worker. A suspect is therefore assigned only to a worker on which no other prompt waits
for its first token: an engine that ends meanwhile ended because of it, or of an answer that it was
generating.

Neither side waits for good: the worker is kept for a suspect for at most `ALONE_SECONDS`, then gets other
requests; and a suspect that has waited for such a worker as long goes to any. Either way it is alone no more,
so that its worker's end is no proof against it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from warmfleet_router.routing.leases import Lease

ALONE_SECONDS: Final = 10.0
"""A suspect waits so long for a worker that computes no other prompt, and keeps it for so long at most."""


@dataclass(slots=True, eq=False)
class Isolation:
    """One suspect at a worker that computed no other prompt when it was assigned."""

    lease: Lease
    since: float
    """Clock time in seconds."""
    is_kept: bool = True
    """Whether no other request was assigned to the worker before the suspect's first token."""


class Isolations:
    """The suspects of one router that are computed alone."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._of_worker: dict[str, Isolation] = {}

    def begin(self, lease: Lease) -> Isolation:
        """A suspect was assigned to a worker that computes no other prompt."""
        isolation = Isolation(lease, self._now())
        self._of_worker[lease.charge.uid] = isolation
        return isolation

    def join(self, uid: str) -> None:
        """Another request was assigned to a worker."""
        isolation = self._of_worker.get(uid)
        if isolation is not None and isolation.lease.is_prefilling:
            isolation.is_kept = False

    def end(self, isolation: Isolation) -> None:
        """The suspect's dispatch has ended. Idempotent."""
        uid = isolation.lease.charge.uid
        if self._of_worker.get(uid) is isolation:
            del self._of_worker[uid]

    @property
    def workers(self) -> list[str]:
        """Uids of the workers that get no request now."""
        now = self._now()
        return [
            uid
            for uid, isolation in self._of_worker.items()
            if isolation.is_kept and isolation.lease.is_prefilling and now - isolation.since < ALONE_SECONDS
        ]
