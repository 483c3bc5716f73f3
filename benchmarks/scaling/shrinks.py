"""Replicas are taken away under live streams: does the marked pod go, and does any client notice?

Greedy streams arrive all the time; each text is compared with that of an undisturbed fleet. `kubectl scale`
takes one replica of three away and gives it back, again and again.
"""

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from scaling.scenario import WAIT_SECONDS, Outcome, is_leaving, release_samples, scaling_fleet, wait_serving
from warmfleet_cli.bench.figures import Target
from warmfleet_contracts.metrics import OPERATOR_SHRINK_VICTIMS
from warmfleet_contracts.names import DELETION_COST_ANNOTATION
from warmfleet_testing.cluster.cluster import eventually
from warmfleet_testing.cluster.installed import QUICK_VALUES, Installed, tiny_deployment
from warmfleet_testing.cluster.steady_load import StreamedAnswer, steady_load

NAME: Final = "shrinking"
REPLICAS: Final = 3
TOKENS: Final = 48
PROMPTS: Final = tuple(f"A long walk along the river, part {number}. What is next?" for number in range(8))


@dataclass(frozen=True, slots=True)
class Shrink:
    """One replica taken away."""

    marked: bool
    """Whether the pod that went carried a mark."""
    deleted_seconds: float
    """From the write of the lower number until a pod was to be deleted."""
    gone_seconds: float
    """Until it had drained and was gone."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything."""

    shrinks: tuple[Shrink, ...]
    streams: int
    failed: int
    """Streams that were refused, cut or ended with an error."""
    different: int
    """Streams whose text is another one than that of the undisturbed fleet."""
    victims: Mapping[str, float]
    """Pods that went, by the operator's own count."""

    def text(self) -> str:
        deleted = [shrink.deleted_seconds for shrink in self.shrinks]
        gone = [shrink.gone_seconds for shrink in self.shrinks]
        return (
            f"{len(self.shrinks)} shrinks under {self.streams} streams: pod deleted after "
            f"{statistics.median(deleted):.1f} s (median, {max(deleted):.1f} s at most), gone after "
            f"{statistics.median(gone):.1f} s ({max(gone):.1f} s); by the operator: {dict(self.victims)}"
        )

    def targets(self) -> list[Target]:
        unmarked = sum(not shrink.marked for shrink in self.shrinks)
        return [
            Target("failed or cut streams", self.failed, 0, at_least=False),
            Target("streams with another text", self.different, 0, at_least=False),
            Target("pods that went without a mark", unmarked, 0, at_least=False),
        ]


def shrink(fleet: Installed) -> Shrink:
    """One replica fewer."""
    began = time.monotonic()
    fleet.kubectl("scale", "modeldeployment", NAME, f"--replicas={REPLICAS - 1}")
    pods = eventually(
        lambda: fleet.pods(NAME), lambda found: any(map(is_leaving, found)), seconds=WAIT_SECONDS
    )
    deleted = time.monotonic() - began
    (victim,) = [pod["metadata"] for pod in pods if is_leaving(pod)]
    eventually(lambda: len(fleet.pods(NAME)), REPLICAS - 1, seconds=WAIT_SECONDS)
    gone = time.monotonic() - began
    return Shrink(int(victim["annotations"].get(DELETION_COST_ANNOTATION, "0")) < 0, deleted, gone)


def grow(fleet: Installed) -> None:
    """All replicas again, known to every router."""
    fleet.kubectl("scale", "modeldeployment", NAME, f"--replicas={REPLICAS}")
    wait_serving(fleet, NAME, REPLICAS)


def measure(options: argparse.Namespace) -> Outcome:
    """`options.shrinks` shrinks."""
    with scaling_fleet(QUICK_VALUES) as fleet:
        fleet.apply(tiny_deployment(NAME, replicas=REPLICAS))
        grow(fleet)
        texts = {
            prompt: fleet.chat(NAME, prompt, max_tokens=TOKENS, ignore_eos=True)["choices"][0]["message"]
            for prompt in PROMPTS
        }
        answers: list[StreamedAnswer] = []
        done: list[Shrink] = []
        for number in range(options.shrinks):
            with steady_load(fleet.router_url, NAME, PROMPTS, tokens=TOKENS) as load:
                eventually(lambda: len(load.answers), lambda sent: sent >= 5)
                done.append(shrink(fleet))
                grow(fleet)
            answers += load.answers
            print(f"shrink {number + 1}: {done[-1]}, {len(load.failed)} streams failed", flush=True)
        different = [
            item for item in answers if not item.error and item.text != texts[item.prompt]["content"]
        ]
        failed = [item for item in answers if item.error]
        victims = {
            labels.split('"')[1]: count
            for labels, count in release_samples(
                fleet, "operator", f"{OPERATOR_SHRINK_VICTIMS}_total"
            ).items()
        }
    measured = Measured(tuple(done), len(answers), len(failed), len(different), victims)
    return Outcome(measured.text(), measured.targets(), asdict(measured))
