"""A local fleet of real workers grows from one to three and shrinks: is it warm, and does a client notice?

`warmfleet up --autoscale` with the catalog model and short windows. Load makes it grow and ends; three
clients at a time then ask with the shared prefixes, and each new worker's first answer is compared with those
of the old one beside it. Under load again, and with one client until a worker has gone, no request may fail.

    make model, then: python benchmarks/local_scaling.py
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from harness.local_fleet import LocalFleet
from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target
from warmfleet_cli.bench.load import LoadResult, LoadShape, find_target, run_load
from warmfleet_cli.bench.load import Target as Fleet
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.model_store.catalog import catalog_model_path

MODEL: Final = "smollm2-135m-instruct"
NAME: Final = "local-scaling"
WORKERS: Final = 3
SEATS: Final = 4
SHAPE: Final = {"prefixes": 4, "prefix_tokens": 512, "question_tokens": 16, "output_tokens": 32, "seed": 1}
AUTOSCALING: Final = {
    "minReplicas": 1,
    "maxReplicas": WORKERS,
    "scaleUp": {"stabilizationSeconds": 2, "periodSeconds": 5, "panicSeconds": 1},
    "scaleDown": {"stabilizationSeconds": 30, "periodSeconds": 5},
}
BURSTS: Final = 30
LOAD_SECONDS: Final = 12.0
WAIT_SECONDS: Final = 200.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer, and who gave it."""

    worker: str
    first_token_seconds: float
    cached_ratio: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything."""

    ready_after_seconds: Mapping[str, float]
    """Of each worker, from the start of its process."""
    start_phases: Mapping[str, Mapping[str, float]]
    first_answers: Mapping[str, Asked]
    """Of each new worker."""
    warm_seconds: float
    """Median time to first token of the old worker in the same bursts."""
    loads: Mapping[str, Mapping[str, Any]]
    failed: int
    workers_left: int

    def text(self) -> str:
        lines = [f"{name} was ready after {seconds:.1f} s: {self.start_phases.get(name, {})}"
                 for name, seconds in self.ready_after_seconds.items()]  # fmt: skip
        lines += [
            f"first answer of {name}: {1000 * asked.first_token_seconds:.0f} ms to the first token, "
            f"{asked.cached_ratio:.0%} cached"
            for name, asked in self.first_answers.items()
        ]
        lines.append(f"answers of the old worker beside them: {1000 * self.warm_seconds:.0f} ms (median)")
        lines += [f"{name}: {record}" for name, record in self.loads.items()]
        return "\n".join(lines)

    def targets(self) -> list[Target]:
        new = list(self.first_answers.values())
        slowest = max((asked.first_token_seconds for asked in new), default=float("nan"))
        longest = max((self.ready_after_seconds[name] for name in self.first_answers), default=float("nan"))
        return [
            Target("failed requests", self.failed, 0, at_least=False),
            Target("new workers that answered", len(new), WORKERS - 1),
            Target("workers left at the end", self.workers_left, WORKERS - 1, at_least=False),
            Target("longest start of a new worker", longest, 5.0, at_least=False, unit="s"),
            Target("its first answer, of a warm one", slowest / self.warm_seconds, 1.2, at_least=False),
        ]


class GrowingFleet(LocalFleet):
    """A fleet whose number of workers follows its load."""

    def show_top(self) -> None:
        """Print what `warmfleet top` shows now."""
        print(self.run("top", "--once"), flush=True)

    def until(self, condition: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        """The workers once the condition holds, or after `WAIT_SECONDS`."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition(workers := self.workers()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return workers


def all_ready(workers: Mapping[str, Mapping[str, Any]]) -> bool:
    return len(workers) == WORKERS and all(worker["state"] == "Ready" for worker in workers.values())


def manifest(model_path: Path) -> dict[str, Any]:
    return {
        "apiVersion": "warmfleet.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"servedNames": [MODEL], "source": {"localPath": {"path": str(model_path)}}},
            "engine": {"maxModelLengthTokens": 2048, "maxRunningSequences": SEATS},
            "kvCache": {"size": "256Mi", "blockSizeTokens": 16},
            "autoscaling": AUTOSCALING,
            "replicas": 1,
            "rollout": {"drainTimeoutSeconds": 60},
        },
    }


async def load(target: Fleet, in_flight: int, until: Callable[[], object]) -> LoadResult:
    """Clients that ask until `until` returns, which blocks, and for their last answers."""
    waiting = asyncio.create_task(asyncio.to_thread(until))
    shape = LoadShape(in_flight=in_flight, seconds=4 * WAIT_SECONDS, **SHAPE)
    result = await run_load(target, shape, is_over=waiting.done)
    await waiting
    return result


async def ask(client: httpx.AsyncClient, target: Fleet, prompt: list[int]) -> Asked:
    """One streamed answer; the router's record of its decision names the worker."""
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": 4,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first, usage = time.monotonic(), float("nan"), {}
    async with client.stream("POST", f"{target.url}/v1/completions", json=body) as response:
        response.raise_for_status()
        decision = response.headers["x-warmfleet-decision"]
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["choices"] and first != first:  # noqa: PLR0124 - still not a number
                first = time.monotonic() - began
            usage = event.get("usage") or usage
    record = (await client.get(f"{target.url}/debug/decisions/{decision}")).raise_for_status().json()
    cached = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
    return Asked(record["endpoint"], first, cached)


async def bursts(target: Fleet) -> list[list[Asked]]:
    """Three clients at a time, until each worker has answered."""
    prompt = LoadShape(in_flight=1, seconds=1, **SHAPE).prompts(target.alphabet)
    done: list[list[Asked]] = []
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        while len(done) < BURSTS:
            first = 10**6 + WORKERS * len(done)
            done.append(
                await asyncio.gather(
                    *(ask(client, target, prompt(first + place)) for place in range(WORKERS))
                )
            )
            if len(done) >= 5 and len({asked.worker for burst in done for asked in burst}) == WORKERS:
                break
    return done


async def measure(fleet: GrowingFleet, target: Fleet) -> Measured:
    old = next(iter(fleet.workers()))
    loads = {}

    def grown() -> None:
        fleet.until(lambda workers: len(workers) == WORKERS)
        fleet.show_top()

    loads["one worker, until three are wanted"] = await load(target, 3 * SEATS, grown)
    workers = fleet.until(all_ready)
    asked = [answer for burst in await bursts(target) for answer in burst]
    first = {answer.worker: answer for answer in reversed(asked) if answer.worker != old}
    workers = fleet.workers()

    def watched() -> None:
        time.sleep(LOAD_SECONDS)
        fleet.show_top()

    loads["three workers"] = await load(target, 3 * SEATS, watched)
    loads["one client, until a worker has gone"] = await load(
        target, 1, lambda: fleet.until(lambda now: len(now) < WORKERS)
    )
    fleet.show_top()
    print(fleet.run("status"), flush=True)
    return Measured(
        ready_after_seconds={name: worker["ready_after_seconds"] for name, worker in workers.items()},
        start_phases={name: worker.get("start_seconds", {}) for name, worker in workers.items()},
        first_answers=first,
        warm_seconds=statistics.median(a.first_token_seconds for a in asked if a.worker == old),
        loads={name: result.record() for name, result in loads.items()},
        workers_left=len(fleet.workers()),
        failed=sum(result.failed for result in loads.values()),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=18080, help="of the router; workers have the next ones")
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/local-scaling"))
    options = parser.parse_args()
    model_path = catalog_model_path(MODEL, warmfleet_home())
    if model_path is None:
        parser.error(f"`warmfleet model pull {MODEL}` fetches the model first")
    report = Report.begin(options, machine_line())
    with GrowingFleet.serving(manifest(model_path), options.port, "--autoscale") as fleet:
        measured = asyncio.run(measure(fleet, find_target(fleet.url, MODEL, "", 1)))
        print((fleet.home / "run" / NAME / "supervisor.log").read_text(), flush=True)
    return report.end(measured.text(), measured.targets(), measured=asdict(measured))


if __name__ == "__main__":
    sys.exit(main())
