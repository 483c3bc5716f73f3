"""Circuit breakers: a worker that keeps failing, or is slower than its peers, gets no requests for a while.

One breaker per worker and epoch: a worker that was started again begins with a closed one. A breaker is
**closed**, or **open** for a time that grows with each ejection, and then **half-open**: one request at a
time goes there, and its first byte closes the breaker. The defaults are those of Envoy's outlier detection
(five failures in a row, 30 s times the number of ejections, 300 s at most) but for the share that may be
ejected, which is half.

Ejection protects a fleet from a few bad workers. If more than half of a model's ready workers would be
ejected, the fault lies elsewhere, or there is no choice: then none is (Envoy's panic threshold).
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

LARGEST_EJECTED_RATIO: Final = 0.5


class Cause(StrEnum):
    """Why a worker was ejected: a closed set, fit for a metric's label."""

    FAILURES = "failures"
    SILENT = "silent"
    SLOW = "slow"
    IMPOSTOR = "impostor"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """When a worker is ejected, and for how long."""

    consecutive_failures: int = 5
    ejection_seconds: float = 30.0
    """Times the number of ejections so far."""
    longest_ejection_seconds: float = 300.0
    """A worker that was not ejected for as long starts again with the shortest ejection."""
    jitter_ratio: float = 0.2
    """An ejection lasts up to this much longer, so that routers do not probe in step."""


@dataclass(frozen=True, slots=True)
class Ejections:
    """Which of a model's workers get no requests now, and why."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    """By uid; empty while no worker is ejected, and in a panic."""
    panic: bool = False
    """More than half would be ejected, so none is."""


@dataclass(frozen=True, slots=True)
class BreakerStatus:
    """State of one breaker at one moment."""

    state: str = "closed"
    reason: str = ""
    ejections: int = 0
    left_seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        """As in `/internal/fleet`."""
        return {
            "state": self.state,
            "reason": self.reason,
            "ejections": self.ejections,
            "left_seconds": round(self.left_seconds, 1),
        }


@dataclass(slots=True, eq=False)
class _Breaker:
    epoch: str
    failures: int = 0  # in a row; at most the limit
    ejections: int = 0
    opened_at: float | None = None  # None while closed
    until: float = 0.0
    calm_since: float = 0.0
    cause: Cause = Cause.FAILURES
    reason: str = ""
    probe: "Trial | None" = None  # the request that is probing, while half-open


NONE_EJECTED: Final = Ejections()


class Breakers:
    """The breakers of one router. Each dispatch has a `trial` and reports to it what came of it.

    A trial begins when the worker is assigned, not when the request is sent: of requests that are assigned
    together, only the first is a half-open worker's probe.

    `on_ejected(uid, cause, reason, seconds)` is called at each ejection.
    """

    def __init__(
        self,
        settings: BreakerSettings | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
        on_ejected: Callable[[str, Cause, str, float], None] = lambda *_: None,
    ) -> None:
        self._settings = settings if settings is not None else BreakerSettings()
        self._now = now
        self._draw = draw
        self._on_ejected = on_ejected
        self._breakers: dict[str, _Breaker] = {}
        self._opened: dict[str, _Breaker] = {}
        """Those of them that are not closed."""

    @property
    def any_opened(self) -> bool:
        """Whether any breaker is not closed; while none is, no worker is ejected."""
        return bool(self._opened)

    def ejections(self, epochs: Mapping[str, str]) -> Ejections:
        """Which of a model's ready workers get no request now; `epochs` is their epoch by uid."""
        now = self._now()
        ejected = {
            uid: reason
            for uid, breaker in self._opened.items()
            if epochs.get(uid) == breaker.epoch and (reason := _refusal(breaker, now))
        }
        if not ejected:
            return NONE_EJECTED
        if len(ejected) > len(epochs) * LARGEST_EJECTED_RATIO:
            return Ejections(panic=True)
        return Ejections(ejected)

    def trial(self, uid: str, epoch: str, *, may_probe: bool = True) -> "Trial":
        """Begin the trial of one dispatch: `release` it, or use `with`, when the dispatch ends.

        `may_probe`: its answer shows whether a half-open worker can be used again.
        """
        return Trial(self, uid, self._of(uid, epoch), may_probe=may_probe)

    def eject(self, uid: str, epoch: str, cause: Cause, reason: str) -> None:
        """Open the breaker of a worker that is there at once, if it is not open already."""
        self.open(uid, self._of(uid, epoch), cause, reason)

    def open(self, uid: str, breaker: _Breaker, cause: Cause, reason: str) -> None:
        """Open `breaker`, if it is not open already."""
        now = self._now()
        if breaker.opened_at is None or now >= breaker.until:
            self._open(uid, breaker, cause, reason, now)

    def is_current(self, uid: str, breaker: _Breaker) -> bool:
        """Whether `breaker` is that of the worker as it is now."""
        return self._breakers.get(uid) is breaker

    def status(self, uid: str, epoch: str) -> BreakerStatus:
        """State of a worker's breaker; closed for an unknown worker or another epoch."""
        breaker, now = self._breakers.get(uid), self._now()
        if breaker is None or breaker.epoch != epoch:
            return BreakerStatus()
        if breaker.opened_at is None:
            return BreakerStatus(ejections=breaker.ejections)
        left_seconds = breaker.until - now
        state = "open" if left_seconds > 0 else "half-open"
        return BreakerStatus(state, breaker.reason, breaker.ejections, max(left_seconds, 0.0))

    def forget(self, uid: str) -> None:
        """The worker is gone."""
        self._breakers.pop(uid, None)
        self._opened.pop(uid, None)

    # Results of trials.

    def failed(self, uid: str, breaker: _Breaker, dispatched_at: float, reason: str) -> None:
        """A dispatch failed, and the worker caused it."""
        now, limit = self._now(), self._settings.consecutive_failures
        breaker.failures = min(breaker.failures + 1, limit)
        if breaker.opened_at is None:
            if breaker.failures >= limit:
                self._open(uid, breaker, Cause.FAILURES, f"{limit} failures in a row, last: {reason}", now)
        elif now >= breaker.until and dispatched_at >= breaker.until:
            self._open(uid, breaker, Cause.FAILURES, f"failed its probe: {reason}", now)

    def answered(self, uid: str, breaker: _Breaker, dispatched_at: float) -> None:
        """The first byte came. If the request was sent since the ejection, the breaker closes.

        Not so before a slow worker's time is over: it was ejected although it answers.
        """
        if breaker.opened_at is None:
            return
        if dispatched_at >= breaker.until or (
            breaker.cause is not Cause.SLOW and dispatched_at > breaker.opened_at
        ):
            breaker.opened_at = None
            if self.is_current(uid, breaker):
                del self._opened[uid]
            breaker.calm_since = self._now()
            # The answer may still break off: until one is complete, a single failure ejects again.
            breaker.failures = self._settings.consecutive_failures - 1

    def now(self) -> float:
        """The breakers' clock."""
        return self._now()

    def _of(self, uid: str, epoch: str) -> _Breaker:
        breaker = self._breakers.get(uid)
        if breaker is None or breaker.epoch != epoch:
            breaker = self._breakers[uid] = _Breaker(epoch)
            self._opened.pop(uid, None)
        return breaker

    def _open(self, uid: str, breaker: _Breaker, cause: Cause, reason: str, now: float) -> None:
        settings = self._settings
        if breaker.opened_at is None and now - breaker.calm_since >= settings.longest_ejection_seconds:
            breaker.ejections = 0
        breaker.ejections += 1
        seconds = min(settings.ejection_seconds * breaker.ejections, settings.longest_ejection_seconds)
        seconds *= 1 + settings.jitter_ratio * self._draw()
        breaker.opened_at, breaker.until = now, now + seconds
        if self.is_current(uid, breaker):
            self._opened[uid] = breaker
        breaker.cause, breaker.reason = cause, reason
        breaker.probe = None
        self._on_ejected(uid, cause, reason, seconds)


class Trial:
    """One dispatch as its worker's breaker sees it. Only the first result counts.

    Without a result the breaker stays as it is.
    """

    __slots__ = ("_breaker", "_breakers", "_dispatched_at", "_has_result", "_is_probe", "_uid")

    def __init__(self, breakers: Breakers, uid: str, breaker: _Breaker, *, may_probe: bool) -> None:
        self._breakers = breakers
        self._uid = uid
        self._breaker = breaker
        self._dispatched_at = breakers.now()
        self._has_result = False
        is_half_open = breaker.opened_at is not None and self._dispatched_at >= breaker.until
        self._is_probe = may_probe and is_half_open
        if self._is_probe:
            breaker.probe = self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def is_current(self) -> bool:
        """Whether the worker is still there in the epoch to which the dispatch was sent."""
        return self._breakers.is_current(self._uid, self._breaker)

    def eject(self, cause: Cause, reason: str) -> None:
        """Open the breaker at once, if it is not open already and the worker is still there."""
        if self.is_current:
            self._breakers.open(self._uid, self._breaker, cause, reason)

    @property
    def is_probe(self) -> bool:
        """Whether the dispatch is the probe of a half-open worker."""
        return self._is_probe

    def answered(self) -> None:
        """The first byte is here, and not slow."""
        self._breakers.answered(self._uid, self._breaker, self._dispatched_at)

    def completed(self) -> None:
        """The answer is complete."""
        if not self._has_result:
            self._has_result = True
            self.answered()
            self._breaker.failures = 0

    def failed(self, reason: str) -> None:
        """The worker did not answer, or not completely."""
        if not self._has_result:
            self._has_result = True
            self._breakers.failed(self._uid, self._breaker, self._dispatched_at, reason)

    def release(self) -> None:
        """The dispatch is over: another one may probe. Idempotent."""
        if self._breaker.probe is self:
            self._breaker.probe = None


def _refusal(breaker: _Breaker, now: float) -> str:
    if now < breaker.until:
        return f"ejected: {breaker.reason}"
    return "half-open, one request is probing it" if breaker.probe is not None else ""
