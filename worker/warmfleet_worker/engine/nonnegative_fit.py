"""Online least squares with non-negative coefficients; knows nothing of steps."""

from collections.abc import Sequence
from typing import Final

SWEEPS: Final = 3
_TINY: Final = 1e-9


class NonNegativeFit:
    """Fits value = sum of coefficient x feature to a stream of samples, each coefficient at least zero.

    Samples come in groups, and a sample fades only as others of its group arrive: a group that is seen
    rarely keeps what it has taught. The normal equations of each group are kept and decayed; after each
    sample a few sweeps of cyclic coordinate descent, each coordinate clipped at zero, move the last solution
    to the new one (Franc, Hlavac and Navara 2005, "Sequential coordinate-wise algorithm for the non-negative
    least squares problem"). State and cost per sample are constant.

        fit = NonNegativeFit(features=2, groups=1, forgetting=0.95)
        fit.observe((3.0, 1.0), 7.0, group=0)
        slope, base = fit.coefficients
    """

    def __init__(self, *, features: int, groups: int, forgetting: float) -> None:
        """`forgetting` is the weight of a sample against the next one of its group.

        Where the data are ambiguous, the value is attributed to the earlier features.
        """
        self.coefficients = [0.0] * features
        self._forgetting = forgetting
        self._groups = [_NormalEquations(features) for _ in range(groups)]
        self._sum = _NormalEquations(features)

    def observe(self, features: Sequence[float], value: float, *, group: int) -> None:
        """Update the coefficients with one sample."""
        self._groups[group].add(features, value, self._forgetting)
        self._sum = _NormalEquations.sum_of(self._groups)
        for _ in range(SWEEPS):
            self._sweep()

    def _sweep(self) -> None:
        coefficients = self.coefficients
        for row, (gram_row, moment) in enumerate(zip(self._sum.gram, self._sum.moment, strict=True)):
            curvature = gram_row[row]
            if curvature <= _TINY:
                continue  # never seen
            slope = moment - sum(map(float.__mul__, gram_row, coefficients))
            coefficients[row] = max(0.0, coefficients[row] + slope / curvature)


class _NormalEquations:
    """Sums over samples of feature x feature and of feature x value."""

    def __init__(self, features: int) -> None:
        self.gram = [[0.0] * features for _ in range(features)]
        self.moment = [0.0] * features

    @classmethod
    def sum_of(cls, parts: "Sequence[_NormalEquations]") -> "_NormalEquations":
        total = cls(0)
        total.gram = [
            list(map(sum, zip(*rows, strict=True)))
            for rows in zip(*(part.gram for part in parts), strict=True)
        ]
        total.moment = list(map(sum, zip(*(part.moment for part in parts), strict=True)))
        return total

    def add(self, features: Sequence[float], value: float, forgetting: float) -> None:
        self.moment = [
            forgetting * old + feature * value for old, feature in zip(self.moment, features, strict=True)
        ]
        for row, row_feature in enumerate(features):
            self.gram[row] = [
                forgetting * old + row_feature * feature
                for old, feature in zip(self.gram[row], features, strict=True)
            ]
