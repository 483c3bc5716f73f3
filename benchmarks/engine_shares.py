"""What is not the model's: the engine's share of a step, the sampler's, and that of server and router.

One engine alone and one behind a worker's server and a router answer the same kind of prompts in turns; the
client reads bytes and looks at them afterwards. The sampler is measured on random weights with a vocabulary
of 151,936; a cached prompt against a new one through the router.

    make model, then: PYTHONPATH=tests/support python benchmarks/engine_shares.py
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, Self

import httpx
from harness.local_fleet import LocalFleet
from harness.report import Report, machine_line

from warmfleet_cli.bench.engine.random_model import SHAPES, write_random_model
from warmfleet_cli.bench.figures import Target
from warmfleet_runtime.home import warmfleet_home
from warmfleet_testing.processes.streamed_prompts import streamed
from warmfleet_worker.model_store.catalog import catalog_model_path

MODEL: Final = "smollm2-135m-instruct"
NAME: Final = "engine-shares"
LARGE: Final = "qwen3-0.6b"
STREAMS: Final = 8
PROMPT_TOKENS: Final = 64
OUTPUT_TOKENS: Final = 192
SAMPLED_TOKENS: Final = 24
SAMPLER_TURNS: Final = 3
"""In a round: what a sampler takes is less than what other processes change."""
LONG_PROMPT_TOKENS: Final = 1000
HARNESS: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything; a list has one entry per round, those of the sampler `SAMPLER_TURNS`."""

    engine: dict[str, str]
    alone_tokens_per_second: list[float]
    routed_tokens_per_second: list[float]
    outside_model_share: list[float]
    """Of a decode step at batch 8, what is neither layers nor sampler."""
    cache_share: list[float]
    cold_seconds: list[float]
    """To the first token of a prompt of 1,000 tokens."""
    cached_seconds: list[float]
    greedy_seconds: list[float]
    """Of decode steps of the large vocabulary."""
    sampled_seconds: list[float]

    def text(self) -> str:
        pairs = zip(self.alone_tokens_per_second, self.routed_tokens_per_second, strict=True)
        steps = zip(self.greedy_seconds, self.sampled_seconds, strict=True)
        firsts = zip(self.cold_seconds, self.cached_seconds, strict=True)
        return "\n".join((
            f"engine: {self.engine}",
            "tokens/s alone / through the router: " + ", ".join(f"{a:.0f}/{b:.0f}" for a, b in pairs),
            "outside the model: " + ", ".join(f"{share:.1%}" for share in self.outside_model_share),
            "pool and prefix cache: " + ", ".join(f"{share:.2%}" for share in self.cache_share),
            "first token new / cached: " + ", ".join(f"{1000 * a:.0f}/{1000 * b:.0f} ms" for a, b in firsts),
            f"{SAMPLED_TOKENS} steps greedy / sampled: " + ", ".join(f"{a:.2f}/{b:.2f} s" for a, b in steps),
        ))  # fmt: skip

    def targets(self) -> list[Target]:
        # Rounds alternate, and the best of each counts: other processes disturb single ones.
        routed = max(self.routed_tokens_per_second) / max(self.alone_tokens_per_second)
        sampler = 1 - min(self.greedy_seconds) / min(self.sampled_seconds)
        cached = statistics.median(self.cached_seconds) / statistics.median(self.cold_seconds)
        outside, cache = min(self.outside_model_share), min(self.cache_share)

        def at_most(name: str, share: float, percent: float) -> Target:
            return Target(name, 100 * share, percent, at_least=False, unit="%")

        return [
            Target("tokens/s through the router, of the engine alone", 100 * routed, 90.0, unit="%"),
            at_most("of a decode step outside the model", outside, 10.0),
            at_most("of a decode step in pool and prefix cache", cache, 1.0),
            at_most("sampling, of a step at 151,936 entries", sampler, 5.0),
            at_most("first token of a cached prompt, of a new one", cached, 10.0),
        ]


class Alone:
    """`harness.engine_alone` in a process."""

    def __init__(self, process: "subprocess.Popen[str]", read_from: IO[str], write_to: IO[str]) -> None:
        self._process = process
        self._read_from = read_from
        self._write_to = write_to
        self.engine: dict[str, str] = self._line()

    @classmethod
    @contextmanager
    def started(cls, model: Path) -> Iterator[Self]:
        """It ends with its input."""
        command = [sys.executable, "-m", "harness.engine_alone", str(model)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HARNESS
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield cls(process, process.stdout, process.stdin)
            finally:
                process.stdin.close()
                process.wait(30)

    def answer(
        self, prompts: list[list[int]], output_tokens: int, temperature: float = 0.0
    ) -> dict[str, float]:
        """See `harness.engine_alone`."""
        work = {
            "prompts": prompts,
            "output_tokens": output_tokens,
            "temperature": temperature,
            "top_p": 0.95 if temperature else 1.0,
        }
        self._write_to.write(json.dumps(work) + "\n")
        self._write_to.flush()
        return self._line()

    def _line(self) -> Any:
        line = self._read_from.readline()
        if not line:
            raise SystemExit("the engine ended: see above")
        return json.loads(line)


def prompts(draw: random.Random, tokens: int = PROMPT_TOKENS, count: int = STREAMS) -> list[list[int]]:
    return [[draw.randrange(1000, 20_000) for _ in range(tokens)] for _ in range(count)]


def first_token_seconds(client: httpx.Client, url: str, prompt: list[int]) -> float:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    answer = client.post(f"{url}/v1/completions", json=body).raise_for_status()
    return answer.elapsed.total_seconds()


def manifest(model_path: Path) -> dict[str, Any]:
    return {
        "apiVersion": "warmfleet.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"servedNames": [MODEL], "source": {"localPath": {"path": str(model_path)}}},
            "engine": {"maxModelLengthTokens": 2048, "maxRunningSequences": STREAMS},
            "kvCache": {"size": "512Mi", "blockSizeTokens": 16},
            "replicas": 1,
        },
    }


def measure(model_path: Path, large: Path, fleet: LocalFleet, rounds: int) -> Measured:
    draw = random.Random(1)
    alone_rates, routed_rates, outside, cache, cold, cached = [], [], [], [], [], []
    with Alone.started(model_path) as alone:
        engine = alone.engine
        for counts in (False, *[True] * rounds):  # the first one warms all up
            answered = alone.answer(prompts(draw), OUTPUT_TOKENS)
            seconds = asyncio.run(streamed(fleet.url, MODEL, prompts(draw), OUTPUT_TOKENS))
            if counts:
                alone_rates.append(STREAMS * OUTPUT_TOKENS / answered["wall"])
                routed_rates.append(STREAMS * OUTPUT_TOKENS / seconds)
                outside.append(1 - answered["model"] / answered["decode_steps"])
                cache.append(answered["cache"] / answered["decode_steps"])
    with httpx.Client(timeout=60, trust_env=False) as client:
        for _ in range(rounds):
            (prompt,) = prompts(draw, LONG_PROMPT_TOKENS, 1)
            cold.append(first_token_seconds(client, fleet.url, prompt))
            cached.append(first_token_seconds(client, fleet.url, prompt))
    greedy, sampled = [], []
    with Alone.started(large) as alone:
        for counts in (False, *[True] * (SAMPLER_TURNS * rounds)):
            one = alone.answer(prompts(draw, 16), SAMPLED_TOKENS)["decode_steps"]
            other = alone.answer(prompts(draw, 16), SAMPLED_TOKENS, temperature=1.0)["decode_steps"]
            if counts:
                greedy.append(one)
                sampled.append(other)
    return Measured(engine, alone_rates, routed_rates, outside, cache, cold, cached, greedy, sampled)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=18090, help="of the router; the worker has the next one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/engine-shares"))
    options = parser.parse_args()
    model_path = catalog_model_path(MODEL, warmfleet_home())
    if model_path is None:
        parser.error(f"`warmfleet model pull {MODEL}` fetches the model first")
    report = Report.begin(options, machine_line())
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / LARGE
        write_random_model(SHAPES[LARGE], large)
        with LocalFleet.serving(manifest(model_path), options.port) as fleet:
            measured = measure(model_path, large, fleet, options.rounds)
    return report.end(measured.text(), measured.targets(), measured=asdict(measured))


if __name__ == "__main__":
    sys.exit(main())
