"""The variants that a benchmark compares, and the predictions of their routers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prediction:
    """Cached tokens of one request: predicted by the router, and found by the worker."""

    predicted_tokens: int
    actual_tokens: int


@dataclass(frozen=True, slots=True)
class Variant:
    """One side of a comparison: a policy, and how many routers share the requests."""

    policy: str
    routers: int = 1

    @property
    def label(self) -> str:
        return self.policy if self.routers == 1 else f"{self.policy}, {self.routers} routers"
