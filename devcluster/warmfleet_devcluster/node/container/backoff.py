"""The wait before a container restarts. Pure; the kubelet's numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `base_seconds` up to `limit_seconds`; forgotten after a run of twice the limit."""

    base_seconds: float = 10.0
    limit_seconds: float = 300.0

    def scaled(self, ratio: float) -> "Backoff":
        """Both times multiplied by `ratio`, so that tests do not wait for minutes."""
        return Backoff(self.base_seconds * ratio, self.limit_seconds * ratio)

    def delay_seconds(self, failures: int) -> float:
        """The wait after so many failures in a row, counted from 1; the first restart is immediate."""
        if failures <= 1:
            return 0.0
        # The exponent is bounded so that a pod that crashes for years does not overflow a float.
        return float(min(self.base_seconds * 2 ** min(failures - 2, 32), self.limit_seconds))

    def forgets(self, ran_seconds: float) -> bool:
        """Whether a run was long enough for earlier failures not to count any more."""
        return ran_seconds >= 2 * self.limit_seconds
