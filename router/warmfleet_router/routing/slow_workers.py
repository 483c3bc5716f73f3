"""Which worker is much slower than its peers, from the times to first byte of its streams.

Each is compared with what the worker's own rates promised: a ratio. A worker is an outlier when the median of
its latest ratios is several times the median of its peers' medians, over enough answers that took a while in
absolute terms. What makes all workers slow, a long prompt or a loaded machine, cancels out.
"""

import statistics
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from warmfleet_router.routing.cost import RatesSource
from warmfleet_router.routing.policies import Candidate

REFERENCE_PREFILL_TOKENS: Final = 64
REFERENCE_SEQUENCES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlierSettings:
    """How slow is too slow."""

    ratio: float = 5.0
    """Times the peers' median."""
    observations: int = 8
    """Answers in a row behind a verdict, of the worker and of each peer it is compared with."""
    least_seconds: float = 0.25
    """A quicker answer never counts as slow, whatever was expected."""
    kept_seconds: float = 120.0
    """Older answers say nothing any more."""


@dataclass(frozen=True, slots=True)
class _Observation:
    at: float
    ratio: float
    seconds: float


class Outliers:
    """The latest answers of each worker."""

    def __init__(self, settings: OutlierSettings | None = None) -> None:
        self._settings = settings if settings is not None else OutlierSettings()
        self._observations: dict[str, deque[_Observation]] = {}
        self._slow_reports: dict[str, int] = {}

    def observe(
        self,
        uid: str,
        *,
        seconds: float,
        expected_seconds: float,
        peers: Collection[str],
        now: float,
        alone: bool = False,
    ) -> str:
        """An answer's first byte came after `seconds`; why `uid` is an outlier among `peers`, "" if not.

        `alone`: judge by this answer, as a probe of a worker that is to show how it is.
        """
        kept = self._observations.setdefault(uid, deque(maxlen=self._settings.observations))
        kept.append(_Observation(now, seconds / max(expected_seconds, 1e-3), seconds))
        typical_seconds = seconds if alone else statistics.median(one.seconds for one in kept)
        if typical_seconds < self._settings.least_seconds:
            return ""
        own = kept[-1].ratio if alone else self._median(uid, now)
        others = [median for peer in peers if peer != uid and (median := self._median(peer, now)) is not None]
        if own is None or not others:
            return ""
        times = own / max(statistics.median(others), 1e-9)
        return f"{times:.0f} times slower than its peers" if times >= self._settings.ratio else ""

    def report(self, chosen: Candidate, candidates: Sequence[Candidate]) -> str:
        """Why `chosen` is an outlier by its own account of its steps, "" if it is not; once per dispatch.

        For policies that send a slow worker as much as any other.
        """
        own = _reference_step_seconds(chosen)
        peers = [
            seconds
            for candidate in candidates
            if candidate.uid != chosen.uid and (seconds := _reference_step_seconds(candidate)) is not None
        ]
        times = own / statistics.median(peers) if own is not None and peers else 0.0
        if times < self._settings.ratio:
            self._slow_reports.pop(chosen.uid, None)
            return ""
        reports = self._slow_reports.get(chosen.uid, 0) + 1
        self._slow_reports[chosen.uid] = reports
        if reports < self._settings.observations:
            return ""
        return f"steps {times:.0f} times slower than its peers'"

    def forget(self, uid: str) -> None:
        """The worker is gone, or starts over."""
        self._observations.pop(uid, None)
        self._slow_reports.pop(uid, None)

    def _median(self, uid: str, now: float) -> float | None:
        kept = self._observations.get(uid, ())
        fresh = [one.ratio for one in kept if now - one.at <= self._settings.kept_seconds]
        return statistics.median(fresh) if len(fresh) >= self._settings.observations else None


def _reference_step_seconds(candidate: Candidate) -> float | None:
    """What one and the same step takes on each worker; None without measurements of its own."""
    rates = candidate.rates
    if rates.source is not RatesSource.MEASURED:
        return None
    return (
        rates.base_seconds
        + rates.per_prefill_token_seconds * REFERENCE_PREFILL_TOKENS
        + rates.per_decode_sequence_seconds * REFERENCE_SEQUENCES
    )
