"""What a fleet of the benchmarks is run under, and what its routers predicted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prediction:
    """How many tokens a router expected to be cached when it chose, and how many the worker found."""

    predicted_tokens: int
    actual_tokens: int


@dataclass(frozen=True, slots=True)
class Variant:
    """What is compared: a policy, and how many routers share the requests."""

    policy: str
    routers: int = 1

    @property
    def label(self) -> str:
        return self.policy if self.routers == 1 else f"{self.policy}, {self.routers} routers"
