"""What is not the model's: the engine's share of a step, the sampler's, and that of server and router.

One engine alone and one behind a worker's server and a router answer the same kind of prompts in turns; the
client reads bytes and looks at them afterwards. The sampler is measured on random weights with a vocabulary
of 151,936; a cached prompt against a new one through the router.

    make model, then: PYTHONPATH=benchmarks python benchmarks/shares/engine_shares.py
"""

import random
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import httpx
from harness.local_fleet import LocalFleet
from harness.report import Report, machine_line

from shares.engine_without_server import EngineWithoutServer
from shares.options import read_options
from shares.random_prompts import random_prompts
from shares.setups import MODEL, SEATS, WARMFLEET
from shares.turns import Rates, turns
from warmfleet_cli.bench.engine.random_model import SHAPES, write_random_model
from warmfleet_cli.bench.figures import Target

LARGE: Final = "qwen3-0.6b"
OUTPUT_TOKENS: Final = 192
SAMPLED_TOKENS: Final = 24
LONG_PROMPT_TOKENS: Final = 1000


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything; a list has one entry per round."""

    engine: dict[str, str]
    rates: Rates
    outside_model_share: list[float]
    """Of a decode step at batch 8, what is neither layers nor sampler."""
    cache_share: list[float]
    cold_seconds: list[float]
    """To the first token of a prompt of 1,000 tokens."""
    cached_seconds: list[float]
    step_seconds: list[float]
    """Of one decode step at the large vocabulary, in which tokens are drawn."""
    sampler_seconds: list[float]
    """Of these, what the draws take."""

    def text(self) -> str:
        steps = zip(self.sampler_seconds, self.step_seconds, strict=True)
        firsts = zip(self.cold_seconds, self.cached_seconds, strict=True)
        return "\n".join((
            f"engine: {self.engine}",
            self.rates.text(),
            "outside the model: " + ", ".join(f"{share:.1%}" for share in self.outside_model_share),
            "pool and prefix cache: " + ", ".join(f"{share:.2%}" for share in self.cache_share),
            "first token new / cached: " + ", ".join(f"{1000 * a:.0f}/{1000 * b:.0f} ms" for a, b in firsts),
            "sampler / step: " + ", ".join(f"{1000 * a:.2f}/{1000 * b:.1f} ms" for a, b in steps),
        ))  # fmt: skip

    def targets(self) -> list[Target]:
        sampler = statistics.median(self.sampler_seconds) / statistics.median(self.step_seconds)
        cached = statistics.median(self.cached_seconds) / statistics.median(self.cold_seconds)
        outside, cache = min(self.outside_model_share), min(self.cache_share)

        def at_most(name: str, share: float, percent: float) -> Target:
            return Target(name, 100 * share, percent, at_least=False, unit="%")

        return [
            self.rates.target(),
            at_most("of a decode step outside the model", outside, 10.0),
            at_most("of a decode step in pool and prefix cache", cache, 1.0),
            at_most("sampling, of a step at 151,936 entries", sampler, 5.0),
            at_most("first token of a cached prompt, of a new one", cached, 10.0),
        ]


def first_token_seconds(client: httpx.Client, url: str, prompt: list[int]) -> float:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    answer = client.post(f"{url}/v1/completions", json=body).raise_for_status()
    return answer.elapsed.total_seconds()


def measure(model_path: Path, large: Path, fleet: LocalFleet, rounds: int) -> Measured:
    draw = random.Random(1)
    with EngineWithoutServer.started("Warmfleet", model_path) as alone:
        engine = alone.engine
        rates, answers = turns(draw, alone, fleet, output_tokens=OUTPUT_TOKENS, rounds=rounds)
    cold, cached = [], []
    with httpx.Client(timeout=60, trust_env=False) as client:
        for _ in range(rounds):
            (prompt,) = random_prompts(draw, 1, LONG_PROMPT_TOKENS)
            cold.append(first_token_seconds(client, fleet.url, prompt))
            cached.append(first_token_seconds(client, fleet.url, prompt))
    steps, samplers = [], []
    with EngineWithoutServer.started("Warmfleet", large) as alone:
        for counts in (False, *[True] * rounds):
            prompts = random_prompts(draw, SEATS, 16)
            sampled = alone.answer(prompts, SAMPLED_TOKENS, temperature=1.0)
            if counts:
                # The prompts' step draws the first token of each.
                steps.append(sampled["decode_steps"] / (SAMPLED_TOKENS - 1))
                samplers.append(sampled["sampler"])
    return Measured(
        engine,
        rates,
        outside_model_share=[1 - one["model"] / one["decode_steps"] for one in answers],
        cache_share=[one["cache"] / one["decode_steps"] for one in answers],
        cold_seconds=cold,
        cached_seconds=cached,
        step_seconds=steps,
        sampler_seconds=samplers,
    )


def main() -> int:
    options, model_path = read_options(__doc__, "Warmfleet", rounds=5, folder="engine-shares")
    report = Report.begin(options, machine_line())
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / LARGE
        write_random_model(SHAPES[LARGE], large)
        with LocalFleet.serving(WARMFLEET.manifest(model_path), options.port) as fleet:
            measured = measure(model_path, large, fleet, options.rounds)
    return report.end(measured.text(), measured.targets(), measured=asdict(measured))


if __name__ == "__main__":
    sys.exit(main())
