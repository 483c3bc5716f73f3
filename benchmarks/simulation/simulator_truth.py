"""Does a simulation find and time what a real fleet does?

Three workers, processes of their own, whose runner computes nothing and sleeps for the modelled time of each
step; all else of them is as it ships, and so is the router in front of them. For each routing policy they
get the same conversations, in real time, as the simulator in virtual time: hit rate and times to first token
are compared, and the order of the policies by the median of the latter. The causes of misses that the live
router counts are compared with those that follow from the full log of the workers' event streams.

A millisecond may change where a request goes, and with it all that follow. So a live run is compared with the
mean of 24 simulated ones that differ by what the processes of a live fleet take (`truth/delayed_runs`). How
far one of them is from the mean by chance is printed beside it, and loosens no target. One more simulation
sends each request where the live run sent it: in its hit rate no difference is left to chance.

    PYTHONPATH=benchmarks:tests/support python benchmarks/simulation/simulator_truth.py [--seconds 600]

Takes four times as long.

With `--computing` the workers compute the catalog model instead, shorter prompts, twice. The simulator gets
the step times that they report after the first run; what is asked of it is no more than 15 %, or than the
second run differs from the first one.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
from harness.report import Report, machine_line

from warmfleet_cli.bench.figures import Target
from warmfleet_runtime.home import warmfleet_home
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_simulator.traces.request import FIRST_ANSWER_ID
from warmfleet_testing.truth.compared_runs import Difference, Run, wrongly_ordered
from warmfleet_testing.truth.conversations import TextRequest, Workload, requests_of
from warmfleet_testing.truth.delayed_runs import DelayedRuns, delayed_runs
from warmfleet_testing.truth.live_fleet import computing_fleet, sleeping_fleet
from warmfleet_testing.truth.sleeping_replica import SLEEPING_REPLICA
from warmfleet_worker.model_store.catalog import catalog_model_path

MAX_HIT_POINTS: Final = 2.0
MAX_PLACED_HIT_POINTS: Final = 0.5
"""Where each request goes where it went live."""
MAX_TIME_PERCENT: Final = 15.0
MAX_MISCOUNTED_PERCENT: Final = 1.0
EQUAL_RATIO: Final = 0.05
"""Policies whose medians are closer have no order: two live runs differ as much."""
WORKERS: Final = 3
ROUTINGS: Final = "LowestCost,ConsistentHash,LeastLoaded,RoundRobin"
NO_DIFFERENCE: Final = Difference(0.0, 0.0, 0.0)
CATALOG_MODEL_NAME: Final = "smollm2-135m-instruct"
COMPUTING_KV_BYTES: Final = 160 * 2**20
"""Some 3,600 tokens."""
SHORT_PROMPTS: Final = Workload(
    seconds=0,
    requests_per_second=0,
    open_conversations=24,
    system_prompts=6,
    system_tokens=160,
    message_tokens=(20, 80),
    answer_tokens=(4, 16),
    longest_prompt_tokens=500,
    pause_seconds=6.0,
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One routing policy, live and simulated."""

    live: Run
    simulated: Run
    """One run, or the mean of several."""
    true_missed_percent: Mapping[str, float]
    """Of the live run, by the full log of what each worker stored and removed."""
    placed: Run | None = None
    """A simulated run in which each request goes where it went live; None where not all were answered."""

    def targets(self, routing: str, allowed: Difference = NO_DIFFERENCE) -> list[Target]:
        """`allowed` is what two live runs differ by."""
        difference = Difference.between(self.live, self.simulated)
        miscounted = max(
            abs(percent - self.true_missed_percent.get(cause, 0.0))
            for cause, percent in self.live.missed_percent.items()
        )
        answered = abs(self.live.answered - self.simulated.answered)
        hit_points = max(MAX_HIT_POINTS, allowed.hit_points)
        most_p50 = max(MAX_TIME_PERCENT, allowed.first_token_p50_percent)
        most_p90 = max(MAX_TIME_PERCENT, allowed.first_token_p90_percent)
        p50, p90 = difference.first_token_p50_percent, difference.first_token_p90_percent
        placed = []
        if self.placed is not None:
            placed_points = Difference.between(self.live, self.placed).hit_points
            name = f"{routing}: difference of hit rates where requests go as live"
            placed.append(_at_most(name, placed_points, MAX_PLACED_HIT_POINTS, " points"))
        return [
            *placed,
            _at_most(f"{routing}: answered by one only", answered, 0, ""),
            _at_most(f"{routing}: difference of hit rates", difference.hit_points, hit_points, " points"),
            _at_most(f"{routing}: of the medians", p50, most_p50, " %"),
            _at_most(f"{routing}: of the 90th percentiles", p90, most_p90, " %"),
            _at_most(
                f"{routing}: tokens of a cause that the log denies", miscounted, MAX_MISCOUNTED_PERCENT, " %"
            ),
        ]


def compare(requests: Sequence[TextRequest], routing: str, runs: DelayedRuns) -> Compared:
    """A live run, the mean of simulated ones, and one with the live run's placements."""
    with (
        tempfile.TemporaryDirectory() as home,
        sleeping_fleet(Path(home), SLEEPING_REPLICA, workers=WORKERS, routing=routing) as fleet,
    ):
        replayed = fleet.replay(requests)
    placed = None
    if len(replayed.answers) == len(requests):  # else a verdict states how many were not answered
        settings = SimulationSettings(
            replica=SLEEPING_REPLICA, replicas=WORKERS, routing=routing, placements=replayed.placements
        )
        placed = Run.of_report(simulate(requests, settings))
    return Compared(
        live=Run.of_answers(replayed.answers, replayed.missed_tokens),
        simulated=runs.mean,
        true_missed_percent=Run.of_answers(replayed.answers, replayed.truly_missed_tokens).missed_percent,
        placed=placed,
    )


def _at_most(name: str, measured: float, required: float, unit: str) -> Target:
    return Target(name, measured, required, at_least=False, unit=unit)


def compute(options: argparse.Namespace, report: Report) -> int:
    """Two live runs of workers that compute, and a simulated one with their step times."""
    model = catalog_model_path(CATALOG_MODEL_NAME, warmfleet_home())
    if model is None:
        raise SystemExit(f"the model is not here; run: warmfleet model pull {CATALOG_MODEL_NAME}")
    workload = replace(
        SHORT_PROMPTS,
        seconds=options.seconds,
        requests_per_second=options.requests_per_second,
        seed=options.seed,
    )
    # What a model answers is no part of the next prompt, in a simulation neither.
    requests = [
        msgspec.structs.replace(request, answer_id=FIRST_ANSWER_ID + number)
        for number, request in enumerate(requests_of(workload))
    ]
    routing, seats = "LowestCost", SLEEPING_REPLICA.seats
    live, replicas, true_percents = [], [], []
    for _ in range(2):
        with (
            tempfile.TemporaryDirectory() as home,
            computing_fleet(
                Path(home),
                model,
                kv_cache_bytes=COMPUTING_KV_BYTES,
                seats=seats,
                workers=WORKERS,
                routing=routing,
            ) as fleet,
        ):
            replayed = fleet.replay(requests)
            replicas.append(fleet.replica(seats))
        live.append(Run.of_answers(replayed.answers, replayed.missed_tokens))
        true_percents.append(Run.of_answers(replayed.answers, replayed.truly_missed_tokens).missed_percent)
        print(f"live       {live[-1].line()}", flush=True)
    settings = SimulationSettings(replica=replicas[0], replicas=WORKERS, routing=routing)
    simulated = Run.of_report(simulate(requests, settings))
    print(f"simulated  {simulated.line()}, step times {replicas[0].step_times}")
    allowed = Difference.between(*live)
    targets = Compared(live[0], simulated, true_percents[0]).targets("Computing", allowed)
    measured = {"live": [asdict(run) for run in live], "simulated": asdict(simulated)}
    return report.end(f"two live runs differ by {allowed.line()}", targets, **measured)


def sleep(options: argparse.Namespace, report: Report) -> int:
    """A live run of workers that sleep, and simulated ones, for each policy."""
    workload = Workload(
        seconds=options.seconds, requests_per_second=options.requests_per_second, seed=options.seed
    )
    requests = list(requests_of(workload))
    targets: list[Target] = []
    compared: dict[str, Compared] = {}
    simulations: dict[str, DelayedRuns] = {}
    for routing in options.routing.split(","):
        runs = simulations[routing] = delayed_runs(
            requests, SLEEPING_REPLICA, replicas=WORKERS, routing=routing
        )
        one = compared[routing] = compare(requests, routing, runs)
        targets += one.targets(routing)
        print(
            f"{routing}\n  live       {one.live.line()}\n  simulated  {one.simulated.line()}\n"
            f"  mean of {len(runs.runs)}, whose hit rates deviate by {runs.deviation_points:.2f} points\n"
            f"  placed     {one.placed.line() if one.placed is not None else ''}",
            flush=True,
        )
    live = {routing: one.live.first_token_p50_ms for routing, one in compared.items()}
    simulated = {routing: one.simulated.first_token_p50_ms for routing, one in compared.items()}
    wrong = wrongly_ordered(live, simulated, equal_ratio=EQUAL_RATIO)
    targets.append(_at_most("pairs of policies in wrong order", len(wrong), 0, ""))
    orders = (
        f"by median, {kind}: {' < '.join(sorted(medians, key=medians.__getitem__))}"
        for kind, medians in (("live", live), ("simulated", simulated))
    )
    measured = {
        routing: asdict(one) | {"simulated_runs": [asdict(run) for run in simulations[routing].runs]}
        for routing, one in compared.items()
    }
    return report.end("\n".join(orders), targets, requests=len(requests), compared=measured)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--computing", action="store_true", help="workers compute the catalog model, twice")
    parser.add_argument("--seconds", type=float, default=600.0, help="of traffic, for each policy")
    parser.add_argument("--requests-per-second", type=float, default=1.4)
    parser.add_argument("--routing", default=ROUTINGS, help="policies, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, default=Path("bench-results/simulator-truth"))
    options = parser.parse_args()
    report = Report.begin(options, machine_line())
    return compute(options, report) if options.computing else sleep(options, report)


if __name__ == "__main__":
    sys.exit(main())
