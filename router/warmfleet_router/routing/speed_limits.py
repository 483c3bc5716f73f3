"""Workers that are too slow: what an answer's first byte says of one, and what it reports of its steps."""

from collections.abc import Callable

from warmfleet_router.routing.picker import Choice
from warmfleet_router.routing.policies import PRICED
from warmfleet_router.routing.slow_workers import Outliers
from warmfleet_router.workers.breakers import Breakers, Cause, Trial


class SpeedJudge:
    """Ejects workers that `Outliers` finds; the request that showed it still goes there."""

    def __init__(self, outliers: Outliers, breakers: Breakers, now: Callable[[], float]) -> None:
        self._outliers = outliers
        self._breakers = breakers
        self._now = now

    def dispatched(self, choice: Choice) -> None:
        """Judge a worker that is about to be used by the steps that it reports, beside its peers'.

        A priced policy sheds slow workers by itself, and their reports need no verdict.
        """
        if choice.policy not in PRICED:
            self._eject(choice, self._outliers.report(choice.candidate, choice.ranking.candidates))

    def answered(self, choice: Choice, seconds: float, trial: Trial) -> None:
        """Judge a worker by the time to the first byte, beside what its own rates say and what peers need."""
        verdict = self._outliers.observe(
            choice.endpoint.uid,
            seconds=seconds,
            expected_seconds=choice.candidate.cost.ttft_ms / 1e3,
            peers=[candidate.uid for candidate in choice.ranking.candidates],
            now=self._now(),
            alone=trial.is_probe,
        )
        if not self._eject(choice, verdict):
            trial.answered()

    def _eject(self, choice: Choice, verdict: str) -> bool:
        if not verdict:
            return False
        self._breakers.eject(choice.endpoint.uid, choice.epoch, Cause.SLOW, verdict)
        self._outliers.forget(choice.endpoint.uid)
        return True
