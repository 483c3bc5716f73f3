"""Does a simulation find and time what a real fleet does?

Three workers, processes of their own, whose runner computes nothing and sleeps for the modelled time of each
step; all else of them is as it ships, and so is the router in front of them. For each routing policy they
get the same conversations, in real time, as the simulator in virtual time: hit rate and times to first token
are compared, and the order of the policies by the median of the latter. The causes of misses that the live
router counts are compared with those that follow from the full log of the workers' event streams.

    PYTHONPATH=tests/support python benchmarks/simulator_truth.py [--seconds 600]    # four times as long
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_simulator.step_times import StepTimes
from warmfleet_testing.truth.compared_runs import Difference, Run, wrongly_ordered
from warmfleet_testing.truth.conversations import TextRequest, Workload, requests_of
from warmfleet_testing.truth.live_fleet import sleeping_fleet

MAX_HIT_POINTS: Final = 2.0
MAX_TIME_PERCENT: Final = 15.0
MAX_MISCOUNTED_PERCENT: Final = 1.0
EQUAL_RATIO: Final = 0.05
"""Policies whose medians are closer have no order: two live runs differ as much."""
WORKERS: Final = 3
ROUTINGS: Final = "LowestCost,ConsistentHash,LeastLoaded,RoundRobin"
MILLISECOND_PS: Final = 10**9
REPLICA: Final = ReplicaSettings(
    StepTimes(
        base_ps=40 * MILLISECOND_PS,
        prefill_token_ps=MILLISECOND_PS * 2 // 5,
        decode_ps=4 * MILLISECOND_PS,
        context_token_ps=MILLISECOND_PS // 1000,
    ),
    block_size_tokens=16,
    total_blocks=1400,
    seats=16,
)
"""Steps so long that little of a time is the machine's. Three such caches hold half of the conversations."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One routing policy, live and simulated."""

    live: Run
    simulated: Run
    true_missed_percent: Mapping[str, float]
    """Of the live run, by the full log of what each worker stored and removed."""

    def targets(self, routing: str) -> list[Target]:
        difference = Difference.between(self.live, self.simulated)
        miscounted = max(
            abs(percent - self.true_missed_percent.get(cause, 0.0))
            for cause, percent in self.live.missed_percent.items()
        )
        answered = abs(self.live.answered - self.simulated.answered)
        p50, p90 = difference.first_token_p50_percent, difference.first_token_p90_percent
        return [
            _at_most(f"{routing}: answered by one only", answered, 0, ""),
            _at_most(f"{routing}: difference of hit rates", difference.hit_points, MAX_HIT_POINTS, " points"),
            _at_most(f"{routing}: of the medians", p50, MAX_TIME_PERCENT, " %"),
            _at_most(f"{routing}: of the 90th percentiles", p90, MAX_TIME_PERCENT, " %"),
            _at_most(
                f"{routing}: tokens of a cause that the log denies", miscounted, MAX_MISCOUNTED_PERCENT, " %"
            ),
        ]


def compare(requests: Sequence[TextRequest], routing: str) -> Compared:
    """A live run and a simulated one."""
    with (
        tempfile.TemporaryDirectory() as home,
        sleeping_fleet(Path(home), REPLICA, workers=WORKERS, routing=routing) as fleet,
    ):
        replayed = fleet.replay(requests)
    live = Run.of_answers(replayed.answers, replayed.missed_tokens)
    true = Run.of_answers(replayed.answers, replayed.truly_missed_tokens)
    settings = SimulationSettings(replica=REPLICA, replicas=WORKERS, routing=routing)
    return Compared(live, Run.of_report(simulate(requests, settings)), true.missed_percent)


def _at_most(name: str, measured: float, required: float, unit: str) -> Target:
    return Target(name, measured, required, at_least=False, unit=unit)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of traffic, for each policy")
    parser.add_argument("--requests-per-second", type=float, default=1.4)
    parser.add_argument("--routing", default=ROUTINGS, help="policies, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/simulator-truth"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    workload = Workload(
        seconds=options.seconds, requests_per_second=options.requests_per_second, seed=options.seed
    )
    requests = list(requests_of(workload))
    targets: list[Target] = []
    compared: dict[str, Compared] = {}
    for routing in options.routing.split(","):
        one = compared[routing] = compare(requests, routing)
        targets += one.targets(routing)
        print(f"{routing}\n  live       {one.live.line()}\n  simulated  {one.simulated.line()}", flush=True)
    live = {routing: one.live.first_token_p50_ms for routing, one in compared.items()}
    simulated = {routing: one.simulated.first_token_p50_ms for routing, one in compared.items()}
    wrong = wrongly_ordered(live, simulated, equal_ratio=EQUAL_RATIO)
    targets.append(_at_most("pairs of policies in wrong order", len(wrong), 0, ""))
    orders = (
        f"by median, {kind}: {' < '.join(sorted(medians, key=medians.__getitem__))}"
        for kind, medians in (("live", live), ("simulated", simulated))
    )
    measured = {routing: asdict(one) for routing, one in compared.items()}
    return report.end("\n".join(orders), targets, requests=len(requests), compared=measured)


if __name__ == "__main__":
    sys.exit(main())
