"""What live runs of ConsistentHash hit is what simulated runs hit in the mean, of which each is another one.

The live runs were recorded as `benchmarks/simulation/simulator_truth.py` does it, on two cores beside other
work (2026-11-27, commit ffbd106c).
"""

from dataclasses import dataclass, replace
from statistics import stdev
from typing import Final

import pytest

from warmfleet_simulator.errors import PlacementError
from warmfleet_simulator.router.network import Delays
from warmfleet_simulator.router.placed_picker import prompt_key
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_testing.truth.compared_runs import Run
from warmfleet_testing.truth.conversations import TextRequest, Workload, requests_of
from warmfleet_testing.truth.delayed_runs import DelayedRuns, delayed_runs
from warmfleet_testing.truth.sleeping_replica import SLEEPING_REPLICA

MAX_HIT_POINTS: Final = 2.0
WORKERS: Final = 3
ROUTING: Final = "ConsistentHash"
FEW_RUNS: Final = 6
"""Instead of the benchmark's 24, for the test's time."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A live run."""

    workload_seed: int
    seconds: float
    answered: int
    hit_percent: float
    placement_percent: float
    """Of the prompt tokens, those that another worker had cached."""


def requests_for(workload_seed: int, *, seconds: float) -> list[TextRequest]:
    return list(requests_of(Workload(seconds=seconds, requests_per_second=1.4, seed=workload_seed)))


@pytest.mark.parametrize(
    "live",
    [
        Recorded(0, 150, answered=213, hit_percent=65.41, placement_percent=16.6),
        Recorded(3, 165, answered=248, hit_percent=70.36, placement_percent=14.3),
        Recorded(19, 165, answered=237, hit_percent=64.67, placement_percent=17.0),
    ],
)
def test_the_mean_of_simulated_runs_hits_what_a_live_run_hits(live: Recorded) -> None:
    """One simulated run without what processes take is 4.9 points from the second of them."""
    runs = delayed_runs(
        requests_for(live.workload_seed, seconds=live.seconds),
        SLEEPING_REPLICA,
        replicas=WORKERS,
        routing=ROUTING,
        count=FEW_RUNS,
    )

    mean = runs.mean
    assert mean.answered == live.answered
    assert abs(mean.hit_percent - live.hit_percent) <= MAX_HIT_POINTS
    assert abs(mean.missed_percent["placement"] - live.placement_percent) <= MAX_HIT_POINTS


def test_milliseconds_move_the_hit_rate_by_more_than_seeds_of_a_cluster_network_show() -> None:
    """Delays of a hundredth of a step change next to no decision: seeds of them repeat one run."""
    requests = requests_for(19, seconds=165)
    settings = SimulationSettings(replica=SLEEPING_REPLICA, replicas=WORKERS, routing=ROUTING)
    hit_percents = [
        100 * simulate(requests, replace(settings, seed=seed)).hit_rate for seed in range(FEW_RUNS)
    ]

    runs = delayed_runs(requests, SLEEPING_REPLICA, replicas=WORKERS, routing=ROUTING, count=FEW_RUNS)

    assert stdev(hit_percents) < 0.1
    assert runs.deviation_points > 0.5


def test_prompts_go_where_another_run_sent_them() -> None:
    """Two workers get all of them, in turn; a third one nothing that it might keep."""
    requests = requests_for(0, seconds=60)
    placements = {
        prompt_key(request.token_ids()): f"replica-000{1 + number % 2}"
        for number, request in enumerate(requests)
    }

    def hit_rate(routing: str, replicas: int, placements: dict[bytes, str] | None = None) -> float:
        settings = SimulationSettings(
            replica=SLEEPING_REPLICA, replicas=replicas, routing=routing, placements=placements
        )
        return simulate(requests, settings).hit_rate

    placed = hit_rate(ROUTING, 3, placements)

    assert placed == hit_rate("LeastLoaded", 3, placements)
    assert placed == pytest.approx(hit_rate("RoundRobin", 2), abs=0.02)
    assert abs(placed - hit_rate(ROUTING, 3)) > 0.02


def test_a_prompt_that_no_run_placed_ends_the_simulation_with_its_reason() -> None:
    requests = requests_for(0, seconds=10)
    placements = {prompt_key(request.token_ids()): "replica-0001" for request in requests[1:]}
    settings = SimulationSettings(
        replica=SLEEPING_REPLICA, replicas=WORKERS, routing=ROUTING, placements=placements
    )

    with pytest.raises(PlacementError, match="no replica for a prompt of"):
        simulate(requests, settings)


def test_longer_delays_are_waited_for() -> None:
    requests = requests_for(0, seconds=20)

    def p50_ms(delays: Delays) -> float:
        settings = SimulationSettings(
            replica=SLEEPING_REPLICA, replicas=WORKERS, routing="RoundRobin", delays=delays
        )
        return Run.of_report(simulate(requests, settings)).first_token_p50_ms

    # The way to the worker waits for the end of its step, if it computes; the way back takes longer in full.
    assert p50_ms(Delays(0.05, 0.05)) >= p50_ms(Delays(0.0, 0.0)) + 50


def test_several_runs_have_the_mean_of_their_figures() -> None:
    def run(hit_percent: float, **missed_percent: float) -> Run:
        return Run(7, hit_percent, 100.0, 200.0, missed_percent)

    runs = DelayedRuns([run(58.0, placement=20.0), run(60.0, capacity=4.0), run(62.0, placement=10.0)])

    assert runs.mean == run(60.0, placement=10.0, capacity=pytest.approx(4 / 3))
    assert runs.deviation_points == pytest.approx(2.0)
