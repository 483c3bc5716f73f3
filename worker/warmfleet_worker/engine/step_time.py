"""Online fit of step time: seconds = base + a * prefill + b * decode + c * context.

Exponentially forgetting least squares with non-negative coefficients. The normal equations are kept and
decayed; after each step a few sweeps of cyclic coordinate descent, each coordinate clipped at zero, move
the last solution to the new one (Franc, Hlavac and Navara 2005, "Sequential coordinate-wise algorithm for
the non-negative least squares problem"). State and cost per step are constant.
"""

import math
from dataclasses import dataclass
from typing import Final

from warmfleet_contracts.cache.kv_events import StepTimeFit
from warmfleet_worker.engine.batch import StepBatch

FORGETTING: Final = 0.995
"""Weight of a step against the next one: about the last 200 steps count."""
SWEEPS: Final = 3
OUTLIER_RATIO: Final = 4.0
"""A step counts as at most this many times its prediction: one outlier does not move the
fit far, and a lasting slowdown still arrives within a few steps."""
SETTLED_SAMPLES: Final = 32

TARGET_STEP_SECONDS: Final = 0.100
MIN_AUTO_BATCHED_TOKENS: Final = 32
MAX_AUTO_BATCHED_TOKENS: Final = 2048
START_AUTO_BATCHED_TOKENS: Final = 128
"""Until a prefill was measured."""

_COEFFICIENTS: Final = 4
_TINY: Final = 1e-9


@dataclass(frozen=True, slots=True)
class StepShape:
    """The features of a step that determine its time."""

    prefill_tokens: int
    decode_sequences: int
    context_tokens: int
    """Tokens of KV that the step's chunks attend to, their own included."""

    @classmethod
    def of(cls, batch: StepBatch) -> "StepShape":
        """The shape of a batch; a single token that asks for the next one counts as a decode."""
        prefill_tokens = decode_sequences = context_tokens = 0
        for chunk in batch.chunks:
            tokens = len(chunk.token_ids)
            context_tokens += chunk.first_position + tokens
            if tokens == 1 and chunk.sample is not None:
                decode_sequences += 1
            else:
                prefill_tokens += tokens
        return cls(prefill_tokens, decode_sequences, context_tokens)


class StepTimeEstimator:
    """Online fit of step seconds, and the token budget that follows from it."""

    def __init__(self) -> None:
        # The base is last: if the data are ambiguous (all prefills alike), time goes to the tokens.
        self._coefficients = [0.0] * _COEFFICIENTS
        self._gram = [[0.0] * _COEFFICIENTS for _ in range(_COEFFICIENTS)]
        self._moment = [0.0] * _COEFFICIENTS
        self._samples = 0
        self._prefill_samples = 0

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Update the fit with one finished step. Durations that are not positive and finite are ignored."""
        if not (math.isfinite(seconds) and seconds > 0.0):
            return
        if self._samples >= SETTLED_SAMPLES:
            seconds = min(seconds, OUTLIER_RATIO * max(self.predict_seconds(shape), _TINY))
        features = _features(shape)
        for row, row_feature in enumerate(features):
            self._moment[row] = FORGETTING * self._moment[row] + row_feature * seconds
            gram_row = self._gram[row]
            for column, column_feature in enumerate(features):
                gram_row[column] = FORGETTING * gram_row[column] + row_feature * column_feature
        self._samples += 1
        self._prefill_samples += shape.prefill_tokens > 0
        for _ in range(SWEEPS):
            self._sweep()

    def predict_seconds(self, shape: StepShape) -> float:
        """Predicted time of such a step; 0 before the first measurement."""
        return sum(
            coefficient * feature
            for coefficient, feature in zip(self._coefficients, _features(shape), strict=True)
        )

    def fit(self) -> StepTimeFit:
        """The coefficients in the form that routers receive."""
        prefill, decode, context, base = self._coefficients
        return StepTimeFit(
            base_seconds=base,
            per_prefill_token_seconds=prefill,
            per_decode_sequence_seconds=decode,
            per_context_token_seconds=context,
            samples=self._samples,
        )

    def auto_batched_tokens(self) -> int:
        """Tokens that prefill computes in 100 ms at the measured rate, between 32 and 2,048."""
        if not self._prefill_samples:
            return START_AUTO_BATCHED_TOKENS
        seconds_per_token = max(self._coefficients[0], _TINY)
        tokens = int(TARGET_STEP_SECONDS / seconds_per_token)
        return max(MIN_AUTO_BATCHED_TOKENS, min(tokens, MAX_AUTO_BATCHED_TOKENS))

    def _sweep(self) -> None:
        coefficients = self._coefficients
        for row, gram_row in enumerate(self._gram):
            curvature = gram_row[row]
            if curvature <= _TINY:
                continue  # never seen, or forgotten: keep what was learned
            slope = self._moment[row]
            for column, entry in enumerate(gram_row):
                slope -= entry * coefficients[column]
            coefficients[row] = max(0.0, coefficients[row] + slope / curvature)


def _features(shape: StepShape) -> tuple[float, float, float, float]:
    return (float(shape.prefill_tokens), float(shape.decode_sequences), float(shape.context_tokens), 1.0)
