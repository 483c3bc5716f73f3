"""Requests for a fleet that sleeps, at two routers: are all answered, and when does the first token come?

The tiny model is on the nodes. Each time the fleet sleeps and its pods are gone, 200 streams are sent within
a second, every other one to the other router. Texts are compared with those of the fleet before it slept.
"""

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from scaling.scenario import WAIT_SECONDS, Outcome, scaling_fleet, wait_serving
from warmfleet_cli.bench.figures import Target
from warmfleet_contracts.names import ROUTER_PORT
from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.installed import Installed, is_ready, tiny_deployment
from warmfleet_testing.cluster.steady_load import held_streams

NAME: Final = "sleeping"
REQUESTS: Final = 200
SPREAD_SECONDS: Final = 1.0
TOKENS: Final = 16
FIRST_TOKEN_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 5
HOLD_SECONDS: Final = 120
PROMPTS: Final = tuple(f"A short walk to the harbour, part {number}. What is next?" for number in range(8))
SCALING: Final = {
    "mode": "Active",
    "minReplicas": 0,
    "maxReplicas": 2,
    "scaleDown": {"stabilizationSeconds": 5, "periodSeconds": 1},
    "zero": {"idleSeconds": IDLE_SECONDS, "holdSeconds": HOLD_SECONDS},
}


@dataclass(frozen=True, slots=True)
class Wake:
    """One wake, in seconds since the first request was sent."""

    number_seconds: float
    """Until the Deployment had a replica."""
    pod_seconds: float
    """Until it had a pod."""
    ready_seconds: float
    """Until that was ready."""
    first_token_seconds: float
    last_token_seconds: float
    """Until the last answer was whole."""
    failed: int
    """Refused, cut, or ended with an error."""
    different: int
    """With another text than before."""
    start_milliseconds: Mapping[str, int]
    """By phase of the first worker's start, as its status has them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything."""

    wakes: tuple[Wake, ...]
    routers: int

    def text(self) -> str:
        def middle(name: str) -> str:
            return f"{statistics.median(getattr(wake, name) for wake in self.wakes):.1f} s"

        first = [wake.first_token_seconds for wake in self.wakes]
        return (
            f"{len(self.wakes)} wakes by {REQUESTS} requests at {self.routers} routers, medians since the "
            f"first request: number {middle('number_seconds')}, pod {middle('pod_seconds')}, ready "
            f"{middle('ready_seconds')}, first token {middle('first_token_seconds')} ({max(first):.1f} s at "
            f"most), all answered {middle('last_token_seconds')}"
        )

    def targets(self) -> list[Target]:
        slowest = max(wake.first_token_seconds for wake in self.wakes)
        return [
            Target("routers", self.routers, 2, at_least=True),
            Target(
                "requests that were not answered", sum(wake.failed for wake in self.wakes), 0, at_least=False
            ),
            Target(
                "answers with another text", sum(wake.different for wake in self.wakes), 0, at_least=False
            ),
            Target("seconds to the first token", slowest, FIRST_TOKEN_SECONDS, at_least=False),
        ]


def wake(fleet: Installed, urls: Sequence[str], texts: dict[str, str]) -> Wake:
    """Send the requests to the fleet that sleeps, and wait for all answers."""
    marks: dict[str, float] = {}
    with held_streams(
        urls, NAME, PROMPTS, requests=REQUESTS, spread_seconds=SPREAD_SECONDS, tokens=TOKENS
    ) as load:
        began = time.monotonic()
        while "ready" not in marks and time.monotonic() - began < HOLD_SECONDS:
            if "number" not in marks:
                deployment = fleet.cluster.read(fleet.namespace, "deployment", NAME)
                if deployment["spec"]["replicas"]:
                    marks["number"] = time.monotonic()
            else:
                pods = fleet.pods(NAME)
                if pods:
                    marks.setdefault("pod", time.monotonic())
                if any(map(is_ready, pods)):
                    marks["ready"] = time.monotonic()
            time.sleep(0.02)
    sent = min(answer.sent for answer in load.answers)
    answered = [answer for answer in load.answers if not answer.error]
    return Wake(
        number_seconds=marks.get("number", float("inf")) - sent,
        pod_seconds=marks.get("pod", float("inf")) - sent,
        ready_seconds=marks.get("ready", float("inf")) - sent,
        first_token_seconds=min(answer.first for answer in load.answers) - sent,
        last_token_seconds=max(answer.ended for answer in load.answers) - sent,
        failed=len(load.answers) - len(answered),
        different=sum(answer.text != texts[answer.prompt] for answer in answered),
        start_milliseconds=fleet.resource(NAME)["status"].get("lastStart", {}).get("phaseMilliseconds", {}),
    )


def measure(options: argparse.Namespace) -> Outcome:
    """Wake the fleet `options.wakes` times."""
    with scaling_fleet() as fleet:
        fleet.apply(tiny_deployment(NAME, autoscaling=SCALING))
        wait_serving(fleet, NAME, 1)
        urls = [
            fleet.forwarder.to(pod["status"]["podIP"], ROUTER_PORT) for pod in fleet.release_pods("router")
        ]
        texts = {
            prompt: fleet.chat(NAME, prompt, max_tokens=TOKENS, ignore_eos=True)["choices"][0]["message"][
                "content"
            ]
            for prompt in PROMPTS
        }
        done = []
        for number in range(options.wakes):
            fleet.wait_for(NAME, "Ready", "True", "Asleep", seconds=WAIT_SECONDS)
            eventually(lambda: fleet.pods(NAME), [], seconds=WAIT_SECONDS)
            done.append(wake(fleet, urls, texts))
            print(f"wake {number + 1}: {done[-1]}", flush=True)
        measured = Measured(tuple(done), len(urls))
        return Outcome(measured.text(), measured.targets(), asdict(measured))
