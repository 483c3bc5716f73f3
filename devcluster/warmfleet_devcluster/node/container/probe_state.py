"""Probes as a state machine. Pure: results go in, a verdict comes out."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self


class Verdict(Enum):
    """The result of a probe, once its threshold is met."""

    UNKNOWN = "unknown"
    SUCCESS = "success"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class ProbeTiming:
    """When to probe and how many results count; Kubernetes' defaults."""

    initial_delay_seconds: float = 0.0
    period_seconds: float = 10.0
    timeout_seconds: float = 1.0
    success_threshold: int = 1
    failure_threshold: int = 3

    @classmethod
    def of(cls, probe: dict[str, Any]) -> Self:
        return cls(
            initial_delay_seconds=probe.get("initialDelaySeconds", 0),
            period_seconds=probe.get("periodSeconds", 10),
            timeout_seconds=probe.get("timeoutSeconds", 1),
            success_threshold=probe.get("successThreshold", 1),
            failure_threshold=probe.get("failureThreshold", 3),
        )


@dataclass(frozen=True, slots=True)
class ProbeState:
    """Results in a row, and the verdict they have led to."""

    verdict: Verdict
    successes: int = 0
    failures: int = 0

    @classmethod
    def initial(cls, kind: str) -> Self:
        """A container counts as alive from the start, and as started or ready only after a success."""
        return cls(Verdict.SUCCESS if kind == "livenessProbe" else Verdict.UNKNOWN)

    def after(self, timing: ProbeTiming, *, succeeded: bool) -> "ProbeState":
        """The state after one more result: a verdict changes when its threshold is met in a row."""
        if succeeded:
            state = replace(self, successes=self.successes + 1, failures=0)
            met = state.successes >= timing.success_threshold
            return replace(state, verdict=Verdict.SUCCESS) if met else state
        state = replace(self, failures=self.failures + 1, successes=0)
        met = state.failures >= timing.failure_threshold
        return replace(state, verdict=Verdict.FAILURE) if met else state
