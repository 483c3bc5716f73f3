"""A replica joins a fleet under load: does it get requests before it is ready, and how warm is it at first?

Twenty-four prompts come again and again to two workers; `kubectl scale` adds a third. What it had cached of
its first requests is compared with what the old ones had cached of theirs in the same time; beside it the
same with `rollout.prewarmTimeoutSeconds: 0`.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import httpx

from scaling.scenario import WAIT_SECONDS, Outcome, scaling_fleet, wait_serving
from warmfleet_cli.bench.figures import Target
from warmfleet_contracts.names import ENGINE_CONTAINER, ROUTER_PORT
from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.installed import QUICK_VALUES, Installed, is_ready, tiny_deployment
from warmfleet_testing.cluster.steady_load import steady_load
from warmfleet_testing.processes.plain_http import NO_TLS

BEGINNING: Final = "Here are the rules of the house for guests of room {}: no noise after ten, no shoes. " * 4
PROMPTS: Final = tuple(f"{BEGINNING.format(*[room] * 4)} What is forbidden?" for room in range(24))
TOKENS: Final = 24
FIRST_REQUESTS: Final = 50
OBSERVED_SECONDS: Final = 60.0
LIMIT_DECISIONS: Final = 1000


@dataclass(frozen=True, slots=True)
class Newcomer:
    """What its first requests found."""

    early_requests: int
    """Sent to it before it was ready."""
    requests: int
    hit_ratio: float
    """Cached prompt tokens of its first requests, of all of theirs."""
    old_hit_ratio: float
    """The same of the others' requests since its first."""
    failed_streams: int
    phases: Mapping[str, int]
    """`status.lastStart`, in milliseconds."""

    @property
    def relative(self) -> float:
        """Its hits against theirs."""
        return self.hit_ratio / self.old_hit_ratio if self.old_hit_ratio else 0.0


def decisions(fleet: Installed, name: str) -> list[dict[str, Any]]:
    """Answered requests of all routers, in the order in which they were sent."""
    found = []
    for pod in fleet.release_pods("router"):
        url = fleet.forwarder.to(pod["status"]["podIP"], ROUTER_PORT)
        headers = {"authorization": f"Bearer {fleet.operator_token}"}
        answer = httpx.get(
            f"{url}/internal/decisions?limit={LIMIT_DECISIONS}",
            headers=headers,
            timeout=30,
            verify=NO_TLS,
            trust_env=False,
        )
        found += answer.raise_for_status().json()["decisions"]
    answered = [one for one in found if one["model"] == name and one.get("actual_prompt_tokens")]
    return sorted(answered, key=sent_at)


def sent_at(decision: Mapping[str, Any]) -> float:
    """Unix time of the dispatch."""
    return float(decision["decided_at"]) + float(decision["dispatched_after_ms"]) / 1000


def hits(of: list[dict[str, Any]]) -> float:
    """Cached prompt tokens of all prompt tokens."""
    prompt = sum(one["actual_prompt_tokens"] for one in of)
    return sum(one["actual_cached_tokens"] or 0 for one in of) / prompt if prompt else 0.0


def ready_at(fleet: Installed, pod: Mapping[str, Any]) -> float:
    """Unix time at which the worker began to take requests, by its own log."""
    for event in _events(fleet.kubectl("logs", pod["metadata"]["name"], "-c", ENGINE_CONTAINER)):
        if event.get("event") == "ready for requests":
            return datetime.fromisoformat(event["timestamp"]).timestamp()
    return 0.0  # it waits for no router: ready as soon as its engine is


def _events(log: str) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in log.splitlines() if line.startswith("{"))


def joined(fleet: Installed, name: str, **rollout: int) -> Newcomer:
    """A third worker joins two."""
    fleet.apply(tiny_deployment(name, replicas=2, rollout={"drainTimeoutSeconds": 30, **rollout}))
    wait_serving(fleet, name, 2)
    old = {pod["metadata"]["uid"] for pod in fleet.pods(name)}
    with steady_load(fleet.router_url, name, PROMPTS, tokens=TOKENS) as load:
        eventually(lambda: len(load.answers), lambda sent: sent >= 4 * len(PROMPTS), seconds=WAIT_SECONDS)
        fleet.kubectl("scale", "modeldeployment", name, "--replicas=3")
        wait_serving(fleet, name, 3)

        def own() -> list[dict[str, Any]]:
            return [one for one in decisions(fleet, name) if one["uid"] not in old]

        # A cold one may get few: prompts go where they are cached.
        until = time.monotonic() + OBSERVED_SECONDS
        while len(own()) < FIRST_REQUESTS and time.monotonic() < until:
            time.sleep(1)
        (pod,) = [pod for pod in fleet.pods(name) if pod["metadata"]["uid"] not in old and is_ready(pod)]
        first = own()[:FIRST_REQUESTS]
        began = sent_at(first[0]) if first else 0.0
        since = [one for one in decisions(fleet, name) if one["uid"] in old and sent_at(one) >= began]
    phases = fleet.resource(name)["status"].get("lastStart", {}).get("phaseMilliseconds", {})
    opened = ready_at(fleet, pod)
    return Newcomer(
        early_requests=sum(sent_at(one) < opened for one in first),
        requests=len(first),
        hit_ratio=hits(first),
        old_hit_ratio=hits(since),
        failed_streams=len(load.failed),
        phases=phases,
    )


def measure(options: argparse.Namespace) -> Outcome:
    """With prewarming, and without."""
    del options
    with scaling_fleet(QUICK_VALUES) as fleet:
        warm = joined(fleet, "prewarmed")
        print(warm, flush=True)
        fleet.delete("prewarmed")
        cold = joined(fleet, "cold", prewarmTimeoutSeconds=0)
        print(cold, flush=True)
    return Outcome(
        f"cached of the first {warm.requests} prompts of a newcomer: {warm.hit_ratio:.1%}, with old workers "
        f"{warm.old_hit_ratio:.1%}; not prewarmed, of {cold.requests} prompts in {OBSERVED_SECONDS:g} s: "
        f"{cold.hit_ratio:.1%} and {cold.old_hit_ratio:.1%}",
        [
            Target("first requests of the newcomer", warm.requests, FIRST_REQUESTS),
            Target("requests before it was ready", warm.early_requests, 0, at_least=False),
            Target("its hits against those of old workers", warm.relative, 0.7),
            Target("failed streams", warm.failed_streams + cold.failed_streams, 0, at_least=False),
        ],
        {"prewarmed": asdict(warm), "cold": asdict(cold)},
    )
