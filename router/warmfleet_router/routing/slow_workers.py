"""Finds workers that are much slower than their peers, and ejects them.

Two measurements count. The time to first byte of an answer is divided by what the worker's own rates
predicted for it; a worker is slow when the median of its ratios is several times that of its typical peer,
over enough answers that took a while in absolute terms. Only answers of the same time are compared, because
then what slows all workers alike, a loaded machine or a busy router, cancels out. The step time that a worker
reports is compared with its peers' reports; policies that sort by cost need only the first measurement.
"""

import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from warmfleet_router.routing.cost import RatesSource
from warmfleet_router.routing.picker import PickedWorker
from warmfleet_router.routing.policies import PRICED, Candidate
from warmfleet_router.workers.breakers import Cause, Trial

REFERENCE_PREFILL_TOKENS: Final = 64
REFERENCE_SEQUENCES: Final = 8
LONGEST_DISTANCE: Final = 0.4
"""Between the middles of two workers' answers, as a part of the time in which they came. Of answers that
come in turn it is one answer's share at most, a third of three; of those that all come first 0.5 or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowWorkerSettings:
    """How slow is too slow."""

    ratio: float = 5.0
    """Times the peers' median."""
    observations: int = 8
    """Answers that are compared, of the worker and of each peer; fewer prove nothing."""
    kept_answers: int = 64
    """Per worker. One that answers more often than `kept_answers / observations` times a peer cannot be
    compared with it: their answers are not of the same time."""
    least_seconds: float = 0.25
    """A quicker answer never counts as slow, however little was predicted."""
    least_step_seconds: float = 0.010
    """A quicker step never counts as slow: of small models, steps of a new worker differ by several times."""
    kept_seconds: float = 120.0
    """Older answers do not count."""


@dataclass(frozen=True, slots=True)
class _Answer:
    at: float
    ratio: float
    seconds: float


class SlowWorkerDetector:
    """The latest measurements of each worker. `record_*` returns why the worker is slow, "" if it is not.

    Measures only; `SlowWorkerEjector` acts on it.
    """

    def __init__(self, settings: SlowWorkerSettings | None = None) -> None:
        self._settings = settings if settings is not None else SlowWorkerSettings()
        self._answers: dict[str, deque[_Answer]] = {}
        self._slow_reports: dict[str, int] = {}

    def record_answer(
        self,
        uid: str,
        *,
        seconds: float,
        expected_seconds: float,
        peers: Collection[str],
        now: float,
        alone: bool = False,
    ) -> str:
        """Record that an answer's first byte came after `seconds`, and compare `uid` with `peers`.

        `alone`: judge by this answer only, because it is the probe of a half-open worker.
        """
        kept = self._answers.setdefault(uid, deque(maxlen=self._settings.kept_answers))
        kept.append(_Answer(now, seconds / max(expected_seconds, 1e-3), seconds))
        latest = [kept[-1]] if alone else list(kept)[-self._settings.observations :]
        if statistics.median(answer.seconds for answer in latest) < self._settings.least_seconds:
            return ""
        measured = self._fresh(uid, now)
        compared = [
            times
            for peer in peers
            if peer != uid
            and (times := self._times_slower(measured, self._fresh(peer, now), alone=alone)) is not None
        ]
        times = statistics.median(compared) if compared else 0.0
        return f"{times:.0f} times slower than its peers" if times >= self._settings.ratio else ""

    def record_report(self, picked: Candidate, candidates: Sequence[Candidate]) -> str:
        """Compare the step time that `picked` reports with its peers'; call it once per dispatch."""
        own = _reference_step_seconds(picked)
        peers = [
            seconds
            for candidate in candidates
            if candidate.uid != picked.uid and (seconds := _reference_step_seconds(candidate)) is not None
        ]
        times = own / max(statistics.median(peers), 1e-9) if own is not None and peers else 0.0
        if times < self._settings.ratio or own is None or own < self._settings.least_step_seconds:
            self._slow_reports.pop(picked.uid, None)
            return ""
        reports = self._slow_reports.get(picked.uid, 0) + 1
        self._slow_reports[picked.uid] = reports
        if reports < self._settings.observations:
            return ""
        return f"steps {times:.0f} times slower than its peers'"

    def forget(self, uid: str) -> None:
        """Drop what was measured of a worker: it is gone, or was ejected."""
        self._answers.pop(uid, None)
        self._slow_reports.pop(uid, None)

    def _times_slower(self, own: Sequence[_Answer], peers: Sequence[_Answer], *, alone: bool) -> float | None:
        """How many times slower the worker with the answers `own` is; None if that is unknown."""
        observations = self._settings.observations
        if alone:
            own, peers = own[-1:], peers[-observations:]
        else:
            own, peers = _of_the_same_time(own, peers, observations)
            if len(own) < observations:
                return None
        if len(peers) < observations:
            return None
        return _median_ratio(own) / max(_median_ratio(peers), 1e-9)

    def _fresh(self, uid: str, now: float) -> list[_Answer]:
        since = now - self._settings.kept_seconds
        return [answer for answer in self._answers.get(uid, ()) if answer.at >= since]


def _of_the_same_time(
    own: Sequence[_Answer], peers: Sequence[_Answer], observations: int
) -> tuple[Sequence[_Answer], Sequence[_Answer]]:
    """The answers of two workers, oldest first, in the shortest time until now that has enough of both.

    Both are empty where there is no such time, or where one's answers come earlier in it than the other's:
    then a change that slowed both would seem to be a difference between them.
    """
    if min(len(own), len(peers)) < observations:
        return (), ()
    since = max(own[0].at, peers[0].at, min(own[-observations].at, peers[-observations].at))
    own, peers = ([answer for answer in answers if answer.at >= since] for answers in (own, peers))
    if min(len(own), len(peers)) < observations:
        return (), ()
    seconds = max(own[-1].at, peers[-1].at) - since
    apart_seconds = abs(_median_time(own) - _median_time(peers))
    return (own, peers) if apart_seconds <= LONGEST_DISTANCE * seconds else ((), ())


def _median_ratio(answers: Iterable[_Answer]) -> float:
    return statistics.median(answer.ratio for answer in answers)


def _median_time(answers: Iterable[_Answer]) -> float:
    return statistics.median(answer.at for answer in answers)


class SlowWorkerEjector:
    """Ejects the workers that a `SlowWorkerDetector` finds. The request that showed it still goes there.

    Call `dispatched` when a request is about to be sent, and `answered` at the first byte of its answer.
    """

    def __init__(self, detector: SlowWorkerDetector, now: Callable[[], float]) -> None:
        self._detector = detector
        self._now = now

    def dispatched(self, picked: PickedWorker, trial: Trial) -> None:
        """Compare the worker's reported step time with its peers'.

        A policy that sorts by cost sends a slow worker less by itself, and needs no ejection for that.
        """
        if trial.is_current and picked.policy not in PRICED:
            reason = self._detector.record_report(picked.candidate, picked.ranking.candidates)
            self._eject(picked, reason, trial)

    def answered(self, picked: PickedWorker, seconds: float, trial: Trial) -> None:
        """Compare the `seconds` to the first byte with the predicted ones, and with the peers' ratios.

        Nothing is kept of a worker that has gone meanwhile.
        """
        if not trial.is_current:
            return
        reason = self._detector.record_answer(
            picked.endpoint.uid,
            seconds=seconds,
            expected_seconds=picked.candidate.cost.ttft_ms / 1e3,
            peers=[candidate.uid for candidate in picked.ranking.candidates],
            now=self._now(),
            alone=trial.is_probe,
        )
        if not self._eject(picked, reason, trial):
            trial.answered()

    def _eject(self, picked: PickedWorker, reason: str, trial: Trial) -> bool:
        if not reason:
            return False
        trial.eject(Cause.SLOW, reason)
        self._detector.forget(picked.endpoint.uid)
        return True


def _reference_step_seconds(candidate: Candidate) -> float | None:
    """How long the same step takes on each worker; None without measurements of its own.

    A fit of few steps may attribute all their time to context or to tokens above the knee: then it has not
    measured such a step.
    """
    rates = candidate.rates
    if rates.source is not RatesSource.MEASURED:
        return None
    seconds = (
        rates.base_seconds
        + rates.per_prefill_token_seconds * rates.paid_tokens(REFERENCE_PREFILL_TOKENS, REFERENCE_SEQUENCES)
        + rates.per_decode_sequence_seconds * REFERENCE_SEQUENCES
    )
    return seconds or None
