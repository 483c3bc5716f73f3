"""How long a step takes, in whole picoseconds, and how much prefill fits into one.

The formula is that of `StepTimeFit`, which a worker fits to its own steps and reports to routers. Whole
numbers make the time of many steps, computed at once, exactly the sum of their times one by one.
"""

from dataclasses import dataclass
from typing import Final

from warmfleet_contracts.cache.kv_events import StepTimeFit
from warmfleet_worker.engine.step_time import (
    MAX_AUTO_BATCHED_TOKENS,
    MIN_AUTO_BATCHED_TOKENS,
    StepLimits,
    StepShape,
)

PICOSECONDS: Final = 10**12
"""In a second."""
_FIT_SAMPLES: Final = 1000
"""Reported with the fit, so that routers use it from the first report on."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Picoseconds = base + a * prefill tokens above the knee + b * decodes + c * context tokens.

    Decodes fill a step up to the knee first. Attention is part of what a token costs.
    """

    base_ps: int
    prefill_token_ps: int
    decode_ps: int
    context_token_ps: int
    knee_tokens: int = 0

    @classmethod
    def of(cls, fit: StepTimeFit) -> "StepTimes":
        """The times that a worker has fitted and reported."""
        return cls(
            base_ps=max(round(fit.base_seconds * PICOSECONDS), 1),
            prefill_token_ps=round(fit.per_prefill_token_seconds * PICOSECONDS),
            decode_ps=round(fit.per_decode_sequence_seconds * PICOSECONDS),
            context_token_ps=round(fit.per_context_token_seconds * PICOSECONDS),
            knee_tokens=fit.knee_tokens,
        )

    def fit(self) -> StepTimeFit:
        """As a worker reports it that has learnt these times."""
        return StepTimeFit(
            base_seconds=self.base_ps / PICOSECONDS,
            per_prefill_token_seconds=self.prefill_token_ps / PICOSECONDS,
            per_decode_sequence_seconds=self.decode_ps / PICOSECONDS,
            per_context_token_seconds=self.context_token_ps / PICOSECONDS,
            knee_tokens=self.knee_tokens,
            samples=_FIT_SAMPLES,
        )

    def step_ps(self, shape: StepShape) -> int:
        """Time of one step."""
        paid_tokens = max(shape.prefill_tokens - max(self.knee_tokens - shape.decode_sequences, 0), 0)
        return (
            self.base_ps
            + self.prefill_token_ps * paid_tokens
            + self.decode_ps * shape.decode_sequences
            + self.context_token_ps * shape.context_tokens
        )

    def prefill_within(self, limit_ps: int, planned: StepShape, first_position: int) -> int:
        """Most tokens of a prompt, from `first_position` on, with which the planned step takes `limit_ps`.

        Negative if it takes longer without any, `MAX_AUTO_BATCHED_TOKENS` if tokens take no time.
        """
        left_ps = limit_ps - (
            self.base_ps
            + self.decode_ps * planned.decode_sequences
            + self.context_token_ps * (planned.context_tokens + first_position)
        )
        free_tokens = max(self.knee_tokens - planned.decode_sequences, 0) - planned.prefill_tokens
        if left_ps < min(self.context_token_ps * free_tokens, 0):
            return -1
        if left_ps < self.context_token_ps * free_tokens:
            return left_ps // self.context_token_ps
        token_ps = self.prefill_token_ps + self.context_token_ps
        if not token_ps:
            return MAX_AUTO_BATCHED_TOKENS
        return (left_ps + self.prefill_token_ps * free_tokens) // token_ps

    def decodes_ps(self, first: StepShape, steps: int) -> int:
        """Time of `steps` steps that begin with `first` and in which all its sequences generate a token."""
        growth_ps = self.context_token_ps * first.decode_sequences
        return steps * self.step_ps(first) + growth_ps * (steps * (steps - 1) // 2)


class ModelledBudget:
    """The prefill that a step computes within the worker's target time, as its estimator chooses it.

    A worker estimates its step times and approaches them within its first minute; here they are known from
    the start.
    """

    def __init__(self, times: StepTimes, target_milliseconds: int) -> None:
        self._times = times
        self._limits = StepLimits(target_milliseconds / 1000)

    def prefill_tokens(self, planned: StepShape, first_position: int, wanted_tokens: int, /) -> int:
        """Tokens of a prompt, from `first_position` on, that fit beside what is planned."""
        least = min(max(MIN_AUTO_BATCHED_TOKENS - planned.prefill_tokens, 0), wanted_tokens)
        decodes = planned.without_prefill
        limit_seconds = self._limits.of_prompt(decodes, self._seconds(decodes))
        return max(self._tokens_within(limit_seconds, planned, first_position, wanted_tokens), least)

    def idle_tokens(self, planned: StepShape, first_position: int, wanted_tokens: int, /) -> int:
        """The same of a prompt that no client waits for; what is planned takes at most a tenth longer."""
        limit_seconds = self._limits.of_idle_prompt(self._seconds(planned))
        return max(self._tokens_within(limit_seconds, planned, first_position, wanted_tokens), 0)

    def _seconds(self, shape: StepShape) -> float:
        return self._times.step_ps(shape) / PICOSECONDS

    def _tokens_within(
        self, limit_seconds: float, planned: StepShape, first_position: int, wanted_tokens: int
    ) -> int:
        most = min(MAX_AUTO_BATCHED_TOKENS - planned.prefill_tokens, wanted_tokens)
        limit_ps = round(limit_seconds * PICOSECONDS)
        return min(most, self._times.prefill_within(limit_ps, planned, first_position))
