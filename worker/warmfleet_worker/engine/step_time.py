"""Online fit of step time, and how much prefill a step takes within a target time.

Steps are bound by memory up to a knee, and take the same time; above it each token adds to them:

    seconds = base + a * prefill tokens above the knee + b * decodes + c * context + d * attention pairs

The knee is not a parameter but a convex line with a corner at each of `KNOTS_TOKENS`. Decodes fill a step
up to a knot first. Steps fade from the fit by size, so that small steps, however many, do not replace what
large ones have taught. A step larger than all that were measured takes more time in proportion, and has at
most `GROWTH` times their tokens.
"""

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from warmfleet_contracts.cache.kv_events import StepTimeFit
from warmfleet_worker.engine.batch import StepBatch
from warmfleet_worker.engine.nonnegative_fit import NonNegativeFit

KNOTS_TOKENS: Final = (0, 32, 128, 512)
FORGETTING: Final = 0.97
"""Weight of a step against the next one of its size: about the last 30 count."""
OUTLIER_RATIO: Final = 4.0
"""A step counts as at most this many times its prediction: one outlier does not move the
fit far, and a lasting slowdown still arrives within a few steps."""
SETTLED_SAMPLES: Final = 32
GROWTH: Final = 2
"""Tokens of a step against those of the largest one that was measured."""

TARGET_STEP_SECONDS: Final = 0.100
"""Unless an engine is given another target."""
MIN_AUTO_BATCHED_TOKENS: Final = 32
MAX_AUTO_BATCHED_TOKENS: Final = 2048
START_AUTO_BATCHED_TOKENS: Final = 128
"""Until a step was measured."""
LONGEST_STEP_SECONDS: Final = 10.0
"""Without a target: a sixth of the time without a step after which a worker is not ready."""
DELAY_RATIO: Final = 0.1
"""What prefill may add to a step: of a prompt that no client waits for, or beside decodes that are slow."""

_TINY: Final = 1e-9


class StepShape(msgspec.Struct, frozen=True, gc=False):
    """The features of a step that determine its time."""

    prefill_tokens: int
    decode_sequences: int
    context_tokens: int
    """Tokens of KV that the step's chunks attend to, their own included."""
    attention_pairs: int = 0
    """Pairs of a prefill token and a token that it attends to."""

    @classmethod
    def of(cls, batch: StepBatch) -> "StepShape":
        """The shape of a batch."""
        return cls.of_shares(
            (chunk.first_position, len(chunk.token_ids), chunk.is_decode) for chunk in batch.chunks
        )

    @classmethod
    def of_shares(cls, shares: Iterable[tuple[int, int, bool]]) -> "StepShape":
        """Of each sequence the first position, how many tokens, and whether that is a decode."""
        decode_positions: list[int] = []
        prefills: list[tuple[int, int]] = []
        for first_position, tokens, is_decode in shares:
            if is_decode:
                decode_positions.append(first_position)
            else:
                prefills.append((first_position, tokens))
        shape = cls.of_decodes(decode_positions)
        for first_position, tokens in prefills:
            shape = shape.with_prefill(first_position, tokens)
        return shape

    @classmethod
    def of_decodes(cls, positions: Sequence[int]) -> "StepShape":
        """A step in which sequences generate their tokens at these positions, and nothing else."""
        return cls(0, len(positions), sum(positions) + len(positions))

    def with_prefill(self, first_position: int, tokens: int) -> "StepShape":
        """This step and `tokens` of a prompt from `first_position` on."""
        return StepShape(
            self.prefill_tokens + tokens,
            self.decode_sequences,
            self.context_tokens + first_position + tokens,
            self.attention_pairs + tokens * first_position + tokens * (tokens + 1) // 2,
        )

    @property
    def without_prefill(self) -> "StepShape":
        """Its decodes; the contexts of its prefills are still in it, and are little of a step."""
        return StepShape(0, self.decode_sequences, self.context_tokens)

    @property
    def tokens(self) -> int:
        """Tokens that the step computes."""
        return self.prefill_tokens + self.decode_sequences


@dataclass(frozen=True, slots=True)
class PrefillLine:
    """Seconds of a step over the prefill tokens in it: flat, then steeper at each of `KNOTS_TOKENS`."""

    base_seconds: float
    slopes: tuple[float, ...]
    """Seconds per token that each knot adds, for the tokens above it."""
    measured_tokens: float
    """Of the largest step measured, decodes included."""

    def slope_beyond(self, other_seconds: float = 0.0) -> float:
        """Seconds per token above `measured_tokens`, in a step that takes `other_seconds` besides.

        The slope over the larger half of what was measured. Until tokens have doubled a step's time that
        may be the flat part: then time is taken to rise in proportion.
        """
        measured = self.measured_tokens
        if not measured:
            return 0.0
        seconds = self._measured_seconds(measured, 0)
        slope = (seconds - self._measured_seconds(measured / 2, 0)) / (measured / 2)
        if seconds >= 2 * self.base_seconds + other_seconds:
            return slope
        return max(slope, (seconds + other_seconds) / measured)

    @property
    def knee_tokens(self) -> int:
        """Where the base meets the line that goes on beyond `measured_tokens`."""
        slope = self.slope_beyond()
        risen_seconds = self._measured_seconds(self.measured_tokens, 0) - self.base_seconds
        return int(self.measured_tokens - risen_seconds / slope) if slope else 0

    def seconds(self, prefill_tokens: int, decodes: int, other_seconds: float = 0.0) -> float:
        """Time of a step with this prefill and so many decodes, which add `other_seconds`."""
        measured = min(float(prefill_tokens), max(self.measured_tokens - decodes, 0.0))
        seconds = self._measured_seconds(measured, decodes) + other_seconds
        beyond = prefill_tokens - measured
        return seconds + beyond * self.slope_beyond(other_seconds) if beyond else seconds

    def _measured_seconds(self, prefill_tokens: float, decodes: int) -> float:
        return self.base_seconds + sum(
            map(float.__mul__, self.slopes, _tokens_above(prefill_tokens, decodes))
        )


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How long steps may become by prefill, in seconds."""

    target: float = TARGET_STEP_SECONDS
    """Beside answers."""

    @property
    def longest(self) -> float:
        """Where no answer waits for the step, the default at least."""
        return max(self.target, TARGET_STEP_SECONDS)

    def of_prompt(self, decodes: StepShape, decodes_seconds: float) -> float:
        """Of a step with these decodes, which alone take so long.

        Those that take almost the target, or more, may become a tenth longer: a target that they cannot meet
        leaves prompts more than the least, and what a step computes at no cost.
        """
        if not decodes.decode_sequences:
            return self.longest
        return max(self.target, self.of_idle_prompt(decodes_seconds))

    def of_idle_prompt(self, planned_seconds: float) -> float:
        """Of a step that takes so long without a prompt that no client waits for."""
        return min((1 + DELAY_RATIO) * planned_seconds, self.longest)


class StepTimeEstimator:
    """Online fit of step seconds, and the prefill that a step computes in time: a `StepBudget`.

    estimator.observe(StepShape.of(batch), seconds)  # after each step
    tokens = estimator.prefill_tokens(StepShape(0, 3, 900), first_position=0, wanted_tokens=4000)
    """

    def __init__(self, target_seconds: float = TARGET_STEP_SECONDS) -> None:
        self._limits = StepLimits(target_seconds)
        groups = len(KNOTS_TOKENS) + 1
        # What is ambiguous goes to the earlier feature: if all prefills are alike to their tokens, and if
        # decodes are always as many to the base.
        self._fit = NonNegativeFit(features=len(KNOTS_TOKENS) + 4, groups=groups, forgetting=FORGETTING)
        self._measured_tokens = [0.0] * groups
        """Of the largest step of each group; fades like its steps."""
        self._pairs_per_token = 0.0
        """Attention pairs for each prefill token, a mean over the last steps with prefill."""
        self._last_token_seconds = 0.0
        """Of the last step with prefill, and no fit, which follows a slow machine over several steps."""
        self._samples = 0
        self._read_fit()

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Update the fit with one finished step. Durations that are not positive and finite are ignored."""
        if not (math.isfinite(seconds) and seconds > 0.0):
            return
        if shape.prefill_tokens >= MIN_AUTO_BATCHED_TOKENS:
            self._last_token_seconds = seconds / shape.tokens
        # The first predictions may be far too low. But a first step that took a minute would set a slope
        # at which no step of its size was ever computed again, so that nothing could correct it.
        least_seconds = _TINY if self._samples >= SETTLED_SAMPLES else TARGET_STEP_SECONDS
        seconds = min(seconds, OUTLIER_RATIO * max(self.predict_seconds(shape), least_seconds))
        # Group 0 has the steps without prefill, group i those with more than `KNOTS_TOKENS[i - 1]` of it.
        group = bisect.bisect_left(KNOTS_TOKENS, shape.prefill_tokens)
        self._fit.observe(_features(shape), seconds, group=group)
        self._measured_tokens[group] = max(shape.tokens, FORGETTING * self._measured_tokens[group])
        if shape.prefill_tokens:
            pairs = shape.attention_pairs / shape.prefill_tokens
            self._pairs_per_token += (1 - FORGETTING) * (pairs - self._pairs_per_token)
        self._samples += 1
        self._read_fit()

    def predict_seconds(self, shape: StepShape) -> float:
        """Predicted time of such a step; 0 before the first measurement."""
        other_seconds = (
            self._pair_seconds * shape.attention_pairs
            + self._decode_seconds * shape.decode_sequences
            + self._context_seconds * shape.context_tokens
        )
        return self._line.seconds(shape.prefill_tokens, shape.decode_sequences, other_seconds)

    def fit(self) -> StepTimeFit:
        """The fit as routers receive it: one knee, and attention as part of what a token costs."""
        return StepTimeFit(
            base_seconds=self._line.base_seconds,
            per_prefill_token_seconds=self._line.slope_beyond() + self._pair_seconds * self._pairs_per_token,
            per_decode_sequence_seconds=self._decode_seconds,
            per_context_token_seconds=self._context_seconds,
            knee_tokens=self._line.knee_tokens,
            samples=self._samples,
        )

    def prefill_tokens(self, planned: StepShape, first_position: int, wanted_tokens: int) -> int:
        """Tokens of a prompt, from `first_position` on, that the planned step takes besides in time.

        A step takes at least `MIN_AUTO_BATCHED_TOKENS` of prefill, however long its decodes take.
        """
        decodes = planned.without_prefill
        limit_seconds = self._limits.of_prompt(decodes, self.predict_seconds(decodes))
        least, most = _least(planned, wanted_tokens), min(self._room(planned), wanted_tokens)
        return self._tokens_within(limit_seconds, planned, first_position, least, most)

    def tokens_before_a_stall(self, planned: StepShape, first_position: int, wanted_tokens: int) -> int:
        """The same without a target: all that are wanted, unless they would take `LONGEST_STEP_SECONDS`."""
        largest = self._largest_step
        if self._last_token_seconds:
            largest = min(largest, int(LONGEST_STEP_SECONDS / self._last_token_seconds))
        least, most = _least(planned, wanted_tokens), min(largest - planned.tokens, wanted_tokens)
        return self._tokens_within(LONGEST_STEP_SECONDS, planned, first_position, least, most)

    def idle_tokens(self, planned: StepShape, first_position: int, wanted_tokens: int) -> int:
        """The same of a prompt that no client waits for; what is planned takes at most a tenth longer."""
        limit_seconds = self._limits.of_idle_prompt(self.predict_seconds(planned))
        most = min(self._room(planned), wanted_tokens)
        return self._tokens_within(limit_seconds, planned, first_position, 0, most)

    def _room(self, planned: StepShape) -> int:
        """Tokens of prefill that a step of this plan may have besides, however little they take."""
        most = min(MAX_AUTO_BATCHED_TOKENS, self._largest_step - planned.decode_sequences)
        return most - planned.prefill_tokens

    @property
    def _largest_step(self) -> int:
        """Tokens of a step, its decodes included, of which the fit knows enough."""
        return GROWTH * int(self._line.measured_tokens) if self._samples else START_AUTO_BATCHED_TOKENS

    def _tokens_within(
        self, seconds: float, planned: StepShape, first_position: int, least: int, most: int
    ) -> int:
        return least + bisect.bisect_right(
            range(least + 1, most + 1),
            seconds,
            key=lambda tokens: self.predict_seconds(planned.with_prefill(first_position, tokens)),
        )

    def auto_batched_tokens(self) -> int:
        """Tokens of a new prompt that a step with nothing else takes; 32 to 2,048."""
        return self.prefill_tokens(StepShape(0, 0, 0), 0, MAX_AUTO_BATCHED_TOKENS)

    def _read_fit(self) -> None:
        *slopes, pair, base, decode, context = self._fit.coefficients
        self._line = PrefillLine(base, tuple(slopes), max(self._measured_tokens))
        self._pair_seconds, self._decode_seconds, self._context_seconds = pair, decode, context


def _least(planned: StepShape, wanted_tokens: int) -> int:
    """Tokens of prefill that a step takes besides, however long it takes."""
    return min(max(MIN_AUTO_BATCHED_TOKENS - planned.prefill_tokens, 0), wanted_tokens)


def _features(shape: StepShape) -> tuple[float, ...]:
    return (
        *_tokens_above(shape.prefill_tokens, shape.decode_sequences),
        float(shape.attention_pairs),
        1.0,
        float(shape.decode_sequences),
        float(shape.context_tokens),
    )


def _tokens_above(prefill_tokens: float, decodes: int) -> list[float]:
    """Prefill tokens above each of `KNOTS_TOKENS`; decodes fill a step up to a knot first."""
    return [max(prefill_tokens - max(knot - decodes, 0), 0.0) for knot in KNOTS_TOKENS]
