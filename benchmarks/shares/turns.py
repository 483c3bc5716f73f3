"""Tokens per second of an engine without its server, and through server and router, in turns."""

import random
from dataclasses import dataclass
from statistics import median
from typing import Final

from harness.local_fleet import LocalFleet

from shares.engine_without_server import EngineWithoutServer
from shares.random_prompts import random_prompts
from shares.setups import MODEL, SEATS
from shares.streamed_prompts import streamed
from warmfleet_cli.bench.figures import Target

PROMPT_TOKENS: Final = 64
LEAST_PERCENT: Final = 90.0


@dataclass(frozen=True, slots=True)
class Rates:
    """One entry per round."""

    alone_tokens_per_second: list[float]
    routed_tokens_per_second: list[float]

    def text(self) -> str:
        rounds = ", ".join(f"{alone:.0f}/{routed:.0f}" for alone, routed in self._pairs())
        best = max(self.routed_tokens_per_second) / max(self.alone_tokens_per_second)
        return f"tokens/s of {SEATS} streams, alone / through the router: {rounds}; best to best {best:.1%}"

    def target(self) -> Target:
        # The two of a round are next to each other: the speed of memory changes from round to round.
        share = median(routed / alone for alone, routed in self._pairs())
        return Target(
            "tokens/s through the router, of the engine alone", 100 * share, LEAST_PERCENT, unit="%"
        )

    def _pairs(self) -> list[tuple[float, float]]:
        return list(zip(self.alone_tokens_per_second, self.routed_tokens_per_second, strict=True))


def turns(
    draw: random.Random, alone: EngineWithoutServer, fleet: LocalFleet, *, output_tokens: int, rounds: int
) -> tuple[Rates, list[dict[str, float]]]:
    """The rates, and what the engine alone answered in each round. A round before them warms both up."""
    answers, routed_seconds = [], []
    for counts in (False, *[True] * rounds):
        answered = alone.answer(random_prompts(draw, SEATS, PROMPT_TOKENS), output_tokens)
        routed = random_prompts(draw, SEATS, PROMPT_TOKENS)
        seconds = streamed(fleet.url, MODEL, routed, output_tokens)
        if counts:
            answers.append(answered)
            routed_seconds.append(seconds)
    tokens = SEATS * output_tokens
    rates = Rates([tokens / one["wall"] for one in answers], [tokens / one for one in routed_seconds])
    return rates, answers
