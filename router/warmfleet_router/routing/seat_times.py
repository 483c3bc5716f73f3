"""How long a sequence keeps its seat on each worker."""

from typing import Final

from warmfleet_router.routing.cost import PRIOR_SEAT_SECONDS

SEAT_TIME_WEIGHT: Final = 0.1
"""Weight of the newest answer in the moving average of how long a seat is kept."""


class SeatTimes:
    """How long a sequence keeps its seat on each worker, learned from answers that ended well."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, uid: str, seconds: float) -> None:
        before = self._seconds.get(uid, seconds)
        self._seconds[uid] = before + SEAT_TIME_WEIGHT * (seconds - before)

    def seconds(self, uid: str) -> float:
        return self._seconds.get(uid, PRIOR_SEAT_SECONDS)

    def forget(self, uid: str) -> None:
        self._seconds.pop(uid, None)
