"""A cache that is too small at a low rate of requests: does it add a replica, and does nothing else?

Three fleets with the policy's defaults and no latency target get a request every two seconds each, at once:
- `hot`: one worker, and a hot set of 1.5 times its KV cache;
- `unique`: one worker, and prompts as long of which no two share a block;
- `shrunk`: two workers, and a hot set of 0.7 times the KV cache of one. Its policy takes one of them away,
  after two minutes at the earliest in place of ten, and must not want it back for what it held.

Workers sleep for the modelled time of each step, as in `ramp`.
"""

import argparse
import asyncio
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from scaling.ramp import SEATS
from scaling.scenario import Outcome, scaling_fleet, wait_serving
from scaling.sleeping_workers import SeededQuestion, add_sleeping_image, random_tokens, sleeping_deployment
from warmfleet_cli.bench.client import Answer, ask, benchmark_client
from warmfleet_cli.bench.figures import Target, percentile
from warmfleet_testing.cluster.installed import QUICK_VALUES, Installed, is_ready

HOT: Final = "hot"
UNIQUE: Final = "unique"
SHRUNK: Final = "shrunk"
REPLICAS: Final = {HOT: 1, UNIQUE: 1, SHRUNK: 2}
KV_CACHE: Final = "2Mi"
KV_TOKENS: Final = 4096
"""That many tokens of the tiny model, of 512 bytes each."""
PREFIX_TOKENS: Final = 384
QUESTION_TOKENS: Final = 16
OUTPUT_TOKENS: Final = 4
PREFIXES: Final = {
    HOT: round(1.5 * KV_TOKENS / PREFIX_TOKENS),
    SHRUNK: round(0.7 * KV_TOKENS / PREFIX_TOKENS),
}
SECONDS_BETWEEN: Final = 2.0
WINDOW_SECONDS: Final = 120.0
"""In whose mean misses must be above their percentage."""
LATER_SECONDS: Final = 60.0
"""After a change of the number: so long caches fill."""
REGRET_SECONDS: Final = 300.0 + 120.0 + 60.0
"""After a shrink: the pause, the window of misses, and a minute."""
MOST_SECONDS: Final = 1200.0
MOST_LOAD_PERMILLE: Final = 600
"""Of one replica's time: far below the load that adds one."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One answered request."""

    model: str
    at: float
    first_token_seconds: float
    prompt_tokens: int
    cached_tokens: int
    error: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A fleet, from a moment on."""

    model: str
    at: float
    wanted: int
    ready: int


class Load:
    """Requests to all three fleets, from a thread of their own until they are over."""

    def __init__(self, url: str) -> None:
        self.asked: list[Asked] = []
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Send no more; returns when every request has its answer."""
        self._over.set()
        self._thread.join()

    async def _run(self) -> None:
        async with benchmark_client() as client, asyncio.TaskGroup() as group:

            async def one(model: str, tokens: Sequence[int], number: int) -> None:
                question = SeededQuestion(f"{model}-{number}", model, tokens, OUTPUT_TOKENS)
                at = time.monotonic()
                answer: Answer = await ask(client, self._url, question)
                self.asked.append(
                    Asked(
                        model,
                        at,
                        answer.first_token_seconds,
                        answer.prompt_tokens,
                        answer.cached_tokens,
                        answer.error,
                    )
                )

            async def fleet(model: str) -> None:
                draw = random.Random(model)
                known = [random_tokens(draw, PREFIX_TOKENS) for _ in range(PREFIXES.get(model, 0))]
                loop, number = asyncio.get_running_loop(), 0
                began = loop.time()
                while not self._over.is_set():
                    prefix = draw.choice(known) if known else random_tokens(draw, PREFIX_TOKENS)
                    group.create_task(one(model, prefix + random_tokens(draw, QUESTION_TOKENS), number))
                    number += 1
                    await asyncio.sleep(max(began + number * SECONDS_BETWEEN - loop.time(), 0))

            for model in REPLICAS:
                group.create_task(fleet(model))


def deployment(model: str) -> dict[str, Any]:
    scaling: dict[str, Any] = {"mode": "Active", "maxReplicas": 4}
    if model == SHRUNK:
        scaling["scaleDown"] = {"stabilizationSeconds": 60}
    return sleeping_deployment(
        model,
        SEATS,
        replicas=REPLICAS[model],
        kvCache={"size": KV_CACHE},
        autoscaling=scaling,
    )


def seen(fleet: Installed, model: str) -> Seen:
    wanted = int(fleet.resource(model)["status"]["desiredReplicas"])
    return Seen(model, time.monotonic(), wanted, sum(map(is_ready, fleet.pods(model))))


def watched(fleet: Installed) -> list[Seen]:
    """Every change of the three fleets, until each has shown what it does."""
    began = time.monotonic()
    timeline = [seen(fleet, model) for model in REPLICAS]
    last = {one.model: one for one in timeline}
    while time.monotonic() < began + MOST_SECONDS and not _is_over(last):
        time.sleep(1)
        for model, before in last.items():
            now = seen(fleet, model)
            if (now.wanted, now.ready) != (before.wanted, before.ready):
                timeline.append(now)
                last[model] = now
                print(f"{now.at - began:5.0f} s: {model} wants {now.wanted}, {now.ready} ready", flush=True)
    return timeline


def _is_over(last: dict[str, Seen]) -> bool:
    """Whether `hot` has grown, and `shrunk` had time to want its replica back."""
    hot, shrunk, now = last[HOT], last[SHRUNK], time.monotonic()
    grown = hot.ready > REPLICAS[HOT] and now - hot.at >= 2 * LATER_SECONDS
    return grown and shrunk.ready < REPLICAS[SHRUNK] and now - shrunk.at >= REGRET_SECONDS


def decisions(fleet: Installed, model: str) -> list[dict[str, Any]]:
    """Those of its status, the oldest first."""
    recorded = fleet.resource(model)["status"].get("scaling", {}).get("decisions", [])
    return list(reversed(recorded))


def hit_ratio(asked: Sequence[Asked]) -> float:
    prompt = sum(one.prompt_tokens for one in asked)
    return sum(one.cached_tokens for one in asked) / prompt if prompt else 0.0


def measure(options: argparse.Namespace) -> Outcome:
    """All three at once."""
    del options
    with scaling_fleet(QUICK_VALUES) as fleet:
        add_sleeping_image(fleet.cluster)
        fleet.apply(*map(deployment, REPLICAS))
        for model, replicas in REPLICAS.items():
            wait_serving(fleet, model, replicas)
        load = Load(fleet.router_url)
        try:
            timeline = watched(fleet)
        finally:
            load.end()
        made = {model: decisions(fleet, model) for model in REPLICAS}
    return _outcome(timeline, made, load.asked)


def _outcome(timeline: list[Seen], made: dict[str, list[dict[str, Any]]], asked: list[Asked]) -> Outcome:
    def between(start: float, end: float) -> list[Asked]:
        return [one for one in asked if one.model == HOT and not one.error and start <= one.at < end]

    def changes(model: str, of: Callable[[dict[str, Any]], bool]) -> int:
        return sum(map(of, made[model]))

    began = timeline[0].at
    nowhere = float("nan")
    growth = next((one for one in made[HOT] if one["to"] > one["from"]), None)
    inputs = growth["inputs"] if growth else {}
    wanted_at = next((one.at for one in timeline if one.model == HOT and one.wanted > 1), nowhere)
    ready_at = next((one.at for one in timeline if one.model == HOT and one.ready > 1), nowhere)
    before = between(wanted_at - WINDOW_SECONDS, wanted_at)
    after = between(ready_at + LATER_SECONDS, float("inf"))
    failed = [one for one in asked if one.error]
    return Outcome(
        f"{len(asked)} requests; a hot set of 1.5 caches wanted a replica after {wanted_at - began:.0f} s: "
        f"cached {hit_ratio(before):.1%} of the prompts before, {hit_ratio(after):.1%} after it, 90th "
        f"percentile of time to first token {_late_ms(before):.0f} and {_late_ms(after):.0f} ms; first "
        f"failure: "
        f"{failed[0].error[:200] if failed else 'none'}",
        [
            Target("failed requests", len(failed), 0, at_least=False),
            Target(
                "growth of the hot set for capacity misses",
                changes(HOT, lambda one: one["to"] > one["from"] and one["reason"] == "CapacityMisses"),
                1,
            ),
            Target("decisions of the hot set", len(made[HOT]), 1, at_least=False),
            Target(
                "requests that waited in routers at the growth",
                int(inputs.get("waitingRequests", 0)) if growth else nowhere,
                0,
                at_least=False,
            ),
            Target(
                "load at the growth, in 1/1000 of a replica",
                int(inputs.get("demandComputePermille", 0)) if growth else nowhere,
                MOST_LOAD_PERMILLE,
                at_least=False,
            ),
            Target("decisions with unique prompts", len(made[UNIQUE]), 0, at_least=False),
            Target("own shrinks", changes(SHRUNK, lambda one: one["to"] < one["from"]), 1),
            Target(
                "growth after it", changes(SHRUNK, lambda one: one["to"] > one["from"]), 0, at_least=False
            ),
        ],
        {
            "timeline": [asdict(one) for one in timeline],
            "decisions": made,
            "asked": [asdict(one) for one in asked],
        },
    )


def _late_ms(asked: Sequence[Asked]) -> float:
    return 1000 * percentile([one.first_token_seconds for one in asked], 90)
