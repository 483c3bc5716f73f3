"""How long do running streams wait for a token while a worker computes a long prompt that is not cached?

One real worker, and streams that run throughout. First a history of cached chat: conversations whose every
turn adds a few tokens, so that all steps are short. Then, several times over, the streams alone, and a cold
prompt beside them. The times between two tokens of a stream are compared: *idle* in the first, *during* from
the cold prompt's request to its first token. After each comes another turn of every conversation.

    python benchmarks/streams_during_prefill.py [--streams 4] [--prompt-tokens 4000] [--rounds 4]
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import httpx
import msgspec
import uvloop
from harness.measured_router import COMPLETIONS_PATH
from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target, percentile
from warmfleet_cli.bench.processes import spawned
from warmfleet_contracts.names import HOME_VARIABLE
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.model_store.catalog import catalog_model_path

MODEL_NAME: Final = "smollm2-135m-instruct"
KNOWN_TOKEN_IDS: Final = range(1000, 40_000)
STREAM_PROMPT_TOKENS: Final = 40
STREAM_TOKENS: Final = 2000
CONVERSATIONS: Final = 4
TURNS: Final = 12
TURN_TOKENS: Final = 12
"""That a turn adds to its conversation."""
MAX_LONGER_MS: Final = 120.0
"""By which the 99th percentile may exceed that of the idle worker."""


@dataclass(slots=True)
class Gaps:
    """Times between two tokens of a stream, in milliseconds, by what ran beside it."""

    by_phase: dict[str, list[float]] = field(default_factory=dict)
    phase: str = "history"

    def add(self, seconds: float) -> None:
        self.by_phase.setdefault(self.phase, []).append(seconds * 1e3)

    def line(self, phase: str) -> str:
        gaps = self.by_phase[phase]
        p50, p99 = percentile(gaps, 50), percentile(gaps, 99)
        return (
            f"{phase:<10}{len(gaps):6} tokens, between two of them: p50 {p50:6.1f} ms, "
            f"p99 {p99:6.1f} ms, longest {max(gaps):6.1f} ms"
        )


class Client:
    """Sends completions of token ids to one worker."""

    def __init__(self, url: str, http: httpx.AsyncClient, seed: int = 0) -> None:
        self.gaps = Gaps()
        self._url = url + COMPLETIONS_PATH
        self._http = http
        self._random = random.Random(seed)

    def tokens(self, count: int) -> list[int]:
        """Random token ids: of no prompt before."""
        return self._random.choices(KNOWN_TOKEN_IDS, k=count)

    async def ask(self, prompt: Sequence[int], max_tokens: int = 1) -> float:
        """Wait for the whole answer; returns the seconds that it took."""
        started = time.perf_counter()
        async for _ in self._events(prompt, max_tokens):
            pass
        return time.perf_counter() - started

    async def stream(self) -> None:
        """Streams of which one begins when the last one has ended; records their gaps until cancelled."""
        while True:
            last: float | None = None
            async for now in self._events(self.tokens(STREAM_PROMPT_TOKENS), STREAM_TOKENS):
                if last is not None:
                    self.gaps.add(now - last)
                last = now

    async def _events(self, prompt: Sequence[int], max_tokens: int) -> AsyncIterator[float]:
        """When each event of the answer with a token came."""
        body = {
            "model": MODEL_NAME,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
            "temperature": 0,
        }
        async with self._http.stream("POST", self._url, content=msgspec.json.encode(body)) as response:
            if response.status_code != 200:
                raise SystemExit(f"the worker answered {response.status_code}: {await response.aread()!r}")
            async for data in response.aiter_raw():
                for _ in range(data.count(b'"text":')):
                    yield time.perf_counter()


async def measure(options: argparse.Namespace, client: Client) -> list[float]:
    """Run all phases; returns the seconds to the first token of each cold prompt."""
    conversations = [client.tokens(200) for _ in range(CONVERSATIONS)]

    async def turns(count: int) -> None:
        for _ in range(count):
            for conversation in conversations:
                conversation += client.tokens(TURN_TOKENS)
                await client.ask(conversation, max_tokens=8)

    cold_seconds: list[float] = []
    async with asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(client.stream()) for _ in range(options.streams)]
        await turns(TURNS)
        for _ in range(options.rounds):
            client.gaps.phase = "idle"
            await asyncio.sleep(options.idle_seconds)
            client.gaps.phase = "during"
            cold_seconds.append(await client.ask(client.tokens(options.prompt_tokens)))
            client.gaps.phase = "between"
            await turns(1)
        for stream in streams:
            stream.cancel()
    return cold_seconds


@asynccontextmanager
async def worker(options: argparse.Namespace) -> AsyncIterator[Client]:
    """A ready worker with the catalog model and the settings that it has by default."""
    model_path = options.model_path or catalog_model_path(MODEL_NAME, warmfleet_home())
    if model_path is None:
        raise SystemExit(f"model {MODEL_NAME} is not here; fetch it: warmfleet model pull {MODEL_NAME}")
    folder = options.output_dir
    command = ["warmfleet_worker", "--model", str(model_path), "--served-name", MODEL_NAME, "--port", "0"]
    environment = {HOME_VARIABLE: str(folder)}
    async with (
        httpx.AsyncClient(timeout=120, trust_env=False) as http,
        spawned("worker", command, log_folder=folder, environment=environment) as process,
    ):
        yield Client(await process.ready(http), http)


async def run(options: argparse.Namespace) -> tuple[Gaps, list[float]]:
    async with worker(options) as client:
        cold_seconds = await measure(options, client)
    return client.gaps, cold_seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=4, help="cold prompts, one after the other")
    parser.add_argument("--idle-seconds", type=float, default=5.0, help="before each cold prompt")
    parser.add_argument("--model-path", type=Path, help=f"instead of {MODEL_NAME}")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/streams-during-prefill"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    gaps, cold_seconds = uvloop.run(run(options))
    longer_ms = percentile(gaps.by_phase["during"], 99) - percentile(gaps.by_phase["idle"], 99)
    target = Target("p99 during, longer than idle", longer_ms, MAX_LONGER_MS, at_least=False, unit=" ms")
    times = ", ".join(f"{seconds:.1f} s" for seconds in cold_seconds)
    lines = [gaps.line(phase) for phase in ("history", "idle", "during")]
    lines.append(f"prompts of {options.prompt_tokens} tokens took {times}")
    return report.end("\n".join(lines), [target], cold_seconds=cold_seconds, **asdict(gaps))


if __name__ == "__main__":
    sys.exit(main())
