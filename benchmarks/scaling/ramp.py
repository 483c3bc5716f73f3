"""A load of one replica becomes a load of four: does the fleet follow, without failure and without reversal?

Workers sleep for the modelled time of each step, so that capacity grows with replicas on any machine; all
else of them is as it ships, and so is the policy. Prompts are unique: nothing is cached. Requests arrive one
by one, at a rate that rises evenly and then stays.
"""

import argparse
import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from scaling.scenario import Outcome, scaling_fleet, wait_serving
from scaling.sleeping_workers import SeededQuestion, add_sleeping_image, random_tokens, sleeping_deployment
from warmfleet_cli.bench.client import Answer, ask, benchmark_client
from warmfleet_cli.bench.figures import Target, percentile
from warmfleet_testing.cluster.installed import QUICK_VALUES, Installed, is_ready

NAME: Final = "ramp"
SEATS: Final = 4
PROMPT_TOKENS: Final = 200
OUTPUT_TOKENS: Final = 20
REPLICA_PER_SECOND: Final = SEATS / (OUTPUT_TOKENS * (0.080 + SEATS * 0.005) + SEATS * PROMPT_TOKENS * 0.001)
"""Requests that a full replica ends: decodes of all seats in one step, prefills one after the other."""
LOAD: Final = 0.8
"""Of what a replica can do; the policy adds one above 0.85."""
TARGET_SECONDS: Final = 3.0
RISE_SECONDS: Final = 120.0
STAY_SECONDS: Final = 180.0
MOST_REPLICAS: Final = 6
WINDOW_SECONDS: Final = 10.0
BACK_WITHIN_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Seen:
    """The fleet at one moment."""

    at: float
    wanted: int
    ready: int


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    at: float
    first_token_seconds: float
    error: str


def arrivals() -> Iterator[float]:
    """Seconds after the start."""
    low, high = LOAD * REPLICA_PER_SECOND, 4 * LOAD * REPLICA_PER_SECOND
    at = 0.0
    while at < RISE_SECONDS + STAY_SECONDS:
        yield at
        at += 1 / (low + (high - low) * min(at / RISE_SECONDS, 1.0))


class Load:
    """All requests, from a thread of their own."""

    def __init__(self, url: str) -> None:
        self.asked: list[Asked] = []
        self._url = url
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    async def _run(self) -> None:
        draw = random.Random(1)
        loop = asyncio.get_running_loop()
        began, began_at = loop.time(), time.monotonic()

        async def one(number: int, after: float) -> None:
            tokens = random_tokens(draw, PROMPT_TOKENS)
            question = SeededQuestion(f"ramp-{number}", NAME, tokens, OUTPUT_TOKENS)
            answer: Answer = await ask(client, self._url, question, due=began + after)
            self.asked.append(Asked(began_at + after, answer.first_token_seconds, answer.error))

        async with benchmark_client() as client, asyncio.TaskGroup() as group:
            for number, after in enumerate(arrivals()):
                await asyncio.sleep(max(began + after - loop.time(), 0))
                group.create_task(one(number, after))


def deployment() -> dict[str, Any]:
    """The fleet, with the policy's defaults and a latency target."""
    return sleeping_deployment(
        NAME,
        SEATS,
        autoscaling={
            "mode": "Active",
            "maxReplicas": MOST_REPLICAS,
            "latency": {"firstToken": {"percentile": 95, "targetMilliseconds": int(TARGET_SECONDS * 1000)}},
        },
    )


def seen(fleet: Installed) -> Seen:
    status = fleet.resource(NAME)["status"]
    ready = sum(map(is_ready, fleet.pods(NAME)))
    return Seen(time.monotonic(), int(status["desiredReplicas"]), ready)


@contextmanager
def ramp_fleet() -> Iterator[Installed]:
    with scaling_fleet(QUICK_VALUES) as fleet:
        add_sleeping_image(fleet.cluster)
        fleet.apply(deployment())
        wait_serving(fleet, NAME, 1)
        yield fleet


def late_after(asked: Sequence[Asked], since: float) -> float:
    """Seconds after `since` until the last window whose 95th percentile is above the target."""
    late = 0.0
    last = max(item.at for item in asked)
    start = since
    while start < last:
        window = [item.first_token_seconds for item in asked if start <= item.at < start + WINDOW_SECONDS]
        if window and not percentile(window, 95) <= TARGET_SECONDS:
            late = start + WINDOW_SECONDS - since
        start += WINDOW_SECONDS / 2
    return late


def measure(options: argparse.Namespace) -> Outcome:
    """One ramp."""
    del options
    with ramp_fleet() as fleet:
        load = Load(fleet.router_url)
        timeline = [seen(fleet)]
        while not load.is_over:
            time.sleep(1)
            now = seen(fleet)
            if (now.wanted, now.ready) != (timeline[-1].wanted, timeline[-1].ready):
                timeline.append(now)
                print(f"{now.at - timeline[0].at:5.0f} s: wanted {now.wanted}, ready {now.ready}", flush=True)
        decisions = fleet.resource(NAME)["status"].get("scaling", {}).get("decisions", [])
        phases = fleet.resource(NAME)["status"].get("lastStart", {}).get("phaseMilliseconds", {})
    wanted = max(item.wanted for item in timeline)
    complete = next((item.at for item in timeline if item.ready >= wanted), float("nan"))
    failed = [item for item in load.asked if item.error]
    lower = sum(decision["to"] < decision["from"] for decision in decisions)
    back = late_after(load.asked, complete)
    return Outcome(
        f"{len(load.asked)} requests, a load of one replica to one of four in {RISE_SECONDS:.0f} s: wanted "
        f"{wanted}, all of them ready after {complete - timeline[0].at:.0f} s; "
        f"first failure: {failed[0].error[:200] if failed else 'none'}",
        [
            Target("failed requests", len(failed), 0, at_least=False),
            Target(
                "p95 of time to first token above its target after the wanted number was ready, for",
                back,
                BACK_WITHIN_SECONDS,
                at_least=False,
                unit=" s",
            ),
            Target("decisions to have fewer replicas", lower, 0, at_least=False),
            Target("replicas wanted for a load of four", wanted, 4),
        ],
        {
            "timeline": [asdict(item) for item in timeline],
            "decisions": decisions,
            "phases": phases,
            "asked": [asdict(item) for item in load.asked],
        },
    )
