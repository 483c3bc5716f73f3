"""A live run and a simulated one of the same requests, by the same figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from warmfleet_cli.bench.client import Answer
from warmfleet_cli.bench.figures import percentile
from warmfleet_simulator.report import Report


@dataclass(frozen=True, slots=True)
class Run:
    """What came of the requests, times in milliseconds."""

    answered: int
    hit_percent: float
    """Of the prompt tokens, those that were cached."""
    first_token_p50_ms: float
    first_token_p90_ms: float
    missed_percent: Mapping[str, float]
    """Of the prompt tokens, by why they were not cached."""

    @classmethod
    def of_answers(cls, answers: Sequence[Answer], missed_tokens: Mapping[str, int]) -> "Run":
        """A live run."""
        good = [answer for answer in answers if answer.succeeded]
        prompt_tokens = sum(answer.prompt_tokens for answer in good)
        first_token_ms = [answer.first_token_seconds * 1e3 for answer in good]
        return cls(
            answered=len(good),
            hit_percent=100 * sum(answer.cached_tokens for answer in good) / prompt_tokens,
            first_token_p50_ms=percentile(first_token_ms, 50),
            first_token_p90_ms=percentile(first_token_ms, 90),
            missed_percent={cause: 100 * tokens / prompt_tokens for cause, tokens in missed_tokens.items()},
        )

    @classmethod
    def of_report(cls, report: Report) -> "Run":
        """A simulated run with answers."""
        times = report.first_token_ms
        assert times.p50 is not None
        assert times.p90 is not None
        return cls(
            answered=report.answered,
            hit_percent=100 * report.hit_rate,
            first_token_p50_ms=times.p50,
            first_token_p90_ms=times.p90,
            missed_percent={
                cause: 100 * tokens / report.prompt_tokens for cause, tokens in report.missed_tokens.items()
            },
        )

    def line(self) -> str:
        """The figures for people to read."""
        causes = ", ".join(
            f"{cause} {percent:.1f}" for cause, percent in self.missed_percent.items() if percent
        )
        return (
            f"{self.answered} answered, hit rate {self.hit_percent:.2f} %, time to first token p50 "
            f"{self.first_token_p50_ms:.0f} ms, p90 {self.first_token_p90_ms:.0f} ms, missed {causes} %"
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a simulated run is from a live one, or a live one from another."""

    hit_points: float
    first_token_p50_percent: float
    first_token_p90_percent: float

    @classmethod
    def between(cls, live: Run, other: Run) -> "Difference":
        """Percentages of the live run's times."""
        return cls(
            abs(other.hit_percent - live.hit_percent),
            100 * abs(other.first_token_p50_ms / live.first_token_p50_ms - 1),
            100 * abs(other.first_token_p90_ms / live.first_token_p90_ms - 1),
        )

    def line(self) -> str:
        """For people to read."""
        return (
            f"{self.hit_points:.2f} points of the hit rate, {self.first_token_p50_percent:.0f} % of the "
            f"median, {self.first_token_p90_percent:.0f} % of the 90th percentile"
        )


def wrongly_ordered(
    live: Mapping[str, float], simulated: Mapping[str, float], *, equal_ratio: float
) -> list[str]:
    """Pairs of names whose simulated figures have another order than the live ones.

    Live figures of a pair that differ by less than `equal_ratio` of the smaller one have none.
    """
    wrong = []
    for one, other in combinations(live, 2):
        low, high = sorted((one, other), key=live.__getitem__)
        if live[high] >= live[low] * (1 + equal_ratio) and simulated[high] <= simulated[low]:
            wrong.append(f"{low} < {high}")
    return wrong
