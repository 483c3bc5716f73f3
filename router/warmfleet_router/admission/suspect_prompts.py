"""Prompts of requests that may have ended an engine, while workers compute them.

A worker computes one of them at a time: if its engine ends, too, the request that ended both is known.
"""

from warmfleet_router.routing.leases import Lease


class SuspectPrompts:
    """The open leases of suspects. One counts until its first byte or its end."""

    def __init__(self) -> None:
        self._leases: set[Lease] = set()

    def add(self, lease: Lease) -> None:
        """A suspect was assigned."""
        self._leases.add(lease)

    def remove(self, lease: Lease) -> None:
        """A dispatch has ended. Idempotent."""
        self._leases.discard(lease)

    @property
    def workers(self) -> frozenset[str]:
        """Uids of the workers that compute a suspect's prompt."""
        return frozenset(lease.charge.uid for lease in self._leases if lease.is_prefilling)
