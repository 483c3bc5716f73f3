"""Which tenants use a model, and which of them have more than their share of the seats."""

from collections.abc import Callable
from typing import Final

RECENT_SECONDS: Final = 300.0
"""A tenant counts as active for this long after its latest request."""
REFRESH_SECONDS: Final = 1.0
MAX_ACTIVE_TENANTS: Final = 4096


class FairShare:
    """Seats that tenants hold of one model, against the shares that their weights give them."""

    def __init__(self, now: Callable[[], float], recent_seconds: float = RECENT_SECONDS) -> None:
        self._now = now
        self._recent_seconds = recent_seconds
        self._seen: dict[str, tuple[float, float]] = {}  # when, weight; latest last
        self._seats: dict[str, int] = {}
        self._total_weight = 0.0
        self._refreshed_at = float("-inf")

    def seen(self, tenant: str, weight: float) -> None:
        """A request of `tenant` arrived."""
        if tenant not in self._seen:
            self._refreshed_at = float("-inf")
            if len(self._seen) >= MAX_ACTIVE_TENANTS:
                del self._seen[next(iter(self._seen))]
        else:
            del self._seen[tenant]
        self._seen[tenant] = (self._now(), weight)
        self.expire()

    def take(self, tenant: str, seats: int) -> None:
        """`tenant` holds so many seats more."""
        self._seats[tenant] = self._seats.get(tenant, 0) + seats

    def give_back(self, tenant: str, seats: int) -> None:
        """`tenant` holds so many seats less."""
        left = self._seats.get(tenant, 0) - seats
        if left > 0:
            self._seats[tenant] = left
        else:
            self._seats.pop(tenant, None)

    @property
    def is_used(self) -> bool:
        """Whether any tenant holds a seat."""
        return bool(self._seats)

    def is_within(self, tenant: str, weight: float, more_seats: int, total_seats: int) -> bool:
        """Whether `tenant` with `more_seats` stays within its share of `total_seats`, 0 meaning unknown.

        A tenant that is alone, or has no seat at all, always is.
        """
        held = self._seats.get(tenant, 0)
        if not held or not total_seats or len(self._seen) <= 1:
            return True
        share = total_seats * weight / max(self._total_weight, weight)
        return held + more_seats <= share

    def expire(self) -> None:
        """Forget tenants without a recent request; works once a second. Arrivals do so, too."""
        now = self._now()
        if now - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = now
        while self._seen:
            name = next(iter(self._seen))
            if now - self._seen[name][0] <= self._recent_seconds:
                break
            del self._seen[name]
        self._total_weight = sum(weight for _, weight in self._seen.values())
