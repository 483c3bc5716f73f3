"""How well two kinds of observations can be separated. Pure functions over numpy arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

RESAMPLES: Final = 1000
FOLDS: Final = 5
_STEPS: Final = 25
_RIDGE: Final = 1e-2

Values = npt.NDArray[np.float64]
Labels = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Separability:
    """The area under the ROC curve of one classifier: 0.5 is guessing, 1 is knowing."""

    name: str
    auc: float
    low: float
    """95 % interval, by bootstrap (Efron 1979, percentile method)."""
    high: float

    def line(self) -> str:
        return f"{self.name:<24}{self.auc:8.3f}   [{self.low:.3f}, {self.high:.3f}]"


def auc(values: Values, labels: Labels) -> float:
    """Probability that a value labelled True exceeds one labelled False; ties count half (Mann-Whitney)."""
    true, false = _histograms(values, labels)
    return float(_area(true, false)) if true.any() and false.any() else 0.5


def by_threshold(name: str, values: Sequence[float], labels: Sequence[bool]) -> Separability:
    """One feature against a threshold, on whichever side of it the True ones lie."""
    kinds = np.asarray(labels, dtype=bool)
    numbers = np.asarray(values, dtype=float)
    sign = 1.0 if auc(numbers, kinds) >= 0.5 else -1.0
    return _with_interval(name, sign * numbers, kinds)


def by_all_features(
    features: Mapping[str, Sequence[float]], labels: Sequence[bool], *, seed: int = 0
) -> Separability:
    """Logistic regression over the ranks of all features and their squares, cross-validated.

    Ranks, because times have long tails. Every observation is scored by a model that has not seen it. An
    area below one half is a model that learned noise; it is left below.
    """
    kinds = np.asarray(labels, dtype=bool)
    columns = [_ranks(np.asarray(values, dtype=float)) for values in features.values()]
    matrix = np.column_stack([np.ones(len(kinds)), *columns, *(column**2 for column in columns)])
    order = np.random.default_rng(seed).permutation(len(kinds))
    scores = np.zeros(len(kinds))
    for fold in range(FOLDS):
        held_out = order[fold::FOLDS]
        kept = np.setdiff1d(order, held_out)
        scores[held_out] = matrix[held_out] @ _logistic(matrix[kept], kinds[kept])
    return _with_interval("all features together", scores, kinds)


def _with_interval(name: str, values: Values, labels: Labels) -> Separability:
    true, false = _histograms(values, labels)
    low = high = 0.5
    if true.any() and false.any():
        draw = np.random.default_rng(0)
        resampled = [
            draw.multinomial(kind.sum(), kind / kind.sum(), size=RESAMPLES).astype(float)
            for kind in (true, false)
        ]
        low, high = np.percentile(_area(*resampled), [2.5, 97.5])
    return Separability(name, auc(values, labels), float(low), float(high))


def _histograms(values: Values, labels: Labels) -> tuple[Values, Values]:
    """How often each distinct value occurs, in ascending order: labelled True, and labelled False."""
    distinct, inverse = np.unique(values, return_inverse=True)
    true, false = (np.bincount(inverse[kind], minlength=len(distinct)) for kind in (labels, ~labels))
    return true.astype(float), false.astype(float)


def _area(true: Values, false: Values) -> Values:
    """Share of pairs in order, along the last axis."""
    below = np.cumsum(false, axis=-1) - false / 2
    area: Values = (true * below).sum(axis=-1) / (true.sum(axis=-1) * false.sum(axis=-1))
    return area


def _ranks(values: Values) -> Values:
    """Between -1 and 1, equal values alike."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts + 1) / 2
    spread = max(len(values) - 1, 1)
    ranks: Values = 2 * middle[inverse] / spread - 1
    return ranks


def _logistic(matrix: Values, labels: Labels) -> Values:
    """Weights by Newton's method with a ridge, which also bounds them where the kinds part completely."""
    weights = np.zeros(matrix.shape[1])
    for _ in range(_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(matrix @ weights, -30, 30)))
        gradient = matrix.T @ (chances - labels) + _RIDGE * weights
        curvature = (matrix * (chances * (1 - chances))[:, None]).T @ matrix + _RIDGE * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-6:
            break
    return weights
