"""Does a shrink on a real cluster take the pod that was marked, and does any client notice?

A devcluster of its own with the chart installed: real API server and controllers, workers of the tiny model
as processes. Greedy streams arrive all the time; each text is compared with that of an undisturbed fleet.
`kubectl scale` takes one replica of three away and gives it back, --shrinks times.

    make controlplane, then as root: PYTHONPATH=tests/support python benchmarks/scaling_e2e.py
"""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target
from warmfleet_contracts.metrics import OPERATOR_SHRINK_VICTIMS
from warmfleet_contracts.names import DELETION_COST_ANNOTATION, OPERATOR_METRICS_PORT
from warmfleet_testing.cluster.cluster import eventually, running_cluster
from warmfleet_testing.cluster.installed import Installed, installed_chart, is_ready, tiny_deployment
from warmfleet_testing.cluster.steady_load import StreamedAnswer, steady_load
from warmfleet_testing.processes.plain_http import NO_TLS

NAME: Final = "shrinking"
REPLICAS: Final = 3
TOKENS: Final = 48
PROMPTS: Final = tuple(f"A long walk along the river, part {number}. What is next?" for number in range(8))
WAIT_SECONDS: Final = 180.0


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


def leaving(pod: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def shrink(fleet: Installed) -> Shrink:
    """One replica fewer."""
    began = time.monotonic()
    fleet.kubectl("scale", "modeldeployment", NAME, f"--replicas={REPLICAS - 1}")
    pods = eventually(
        lambda: fleet.pods(NAME), lambda found: any(leaving(pod) for pod in found), seconds=WAIT_SECONDS
    )
    deleted = time.monotonic() - began
    (victim,) = [pod["metadata"] for pod in pods if leaving(pod)]
    eventually(lambda: len(fleet.pods(NAME)), REPLICAS - 1, seconds=WAIT_SECONDS)
    gone = time.monotonic() - began
    return Shrink(int(victim["annotations"].get(DELETION_COST_ANNOTATION, "0")) < 0, deleted, gone)


def grow(fleet: Installed) -> None:
    """All replicas again, known to every router."""
    fleet.kubectl("scale", "modeldeployment", NAME, f"--replicas={REPLICAS}")
    eventually(
        lambda: sum(is_ready(pod) and not leaving(pod) for pod in fleet.pods(NAME)),
        REPLICAS,
        seconds=WAIT_SECONDS,
    )
    fleet.wait_routed(NAME)


def victims(fleet: Installed) -> dict[str, float]:
    """What the operators have counted."""
    counted: dict[str, float] = {}
    for pod in fleet.release_pods("operator"):
        url = fleet.forwarder.to(pod["status"]["podIP"], OPERATOR_METRICS_PORT)
        page = httpx.get(f"{url}/metrics", timeout=30, verify=NO_TLS, trust_env=False).raise_for_status().text
        for line in page.splitlines():
            if line.startswith(f"{OPERATOR_SHRINK_VICTIMS}_total{{"):
                choice = line.split('"')[1]
                counted[choice] = counted.get(choice, 0.0) + float(line.rsplit(" ", 1)[1])
    return counted


def measure(count: int) -> Measured:
    with (
        running_cluster() as cluster,
        installed_chart(cluster) as release,
        release.within("scaling") as fleet,
    ):
        fleet.apply(tiny_deployment(NAME, replicas=REPLICAS))
        grow(fleet)
        texts = {
            prompt: fleet.chat(NAME, prompt, max_tokens=TOKENS, ignore_eos=True)["choices"][0]["message"]
            for prompt in PROMPTS
        }
        answers: list[StreamedAnswer] = []
        done: list[Shrink] = []
        for number in range(count):
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
        return Measured(tuple(done), len(answers), len(failed), len(different), victims(fleet))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shrinks", type=int, default=20)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/scaling-e2e"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    measured = measure(options.shrinks)
    return report.end(measured.text(), measured.targets(), **asdict(measured))


if __name__ == "__main__":
    sys.exit(main())
