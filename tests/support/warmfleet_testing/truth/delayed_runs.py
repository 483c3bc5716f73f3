"""Simulated runs of the same requests that differ by a few milliseconds, as live runs of them do.

A routing policy that compares loads decides otherwise where a request comes a millisecond after another one's
end instead of before it. Then the blocks of a conversation are on another worker, and so are the loads that
the next requests find: two runs whose times differ by a millisecond may differ by several points in their hit
rates. So a live run is one of many that might have been, and is compared with the mean of several simulated
ones.

The seed of a simulation alone does not give several: its delays, a hundredth of a step, change next to no
decision. What processes of a live fleet take is more, and not known to better than its own size.

What does not depend on decisions is compared in a simulation that gets the live run's (`placements`).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Final

from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.router.network import Delays
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_simulator.traces.request import TraceRequest
from warmfleet_testing.truth.compared_runs import Run

SIMULATED_RUNS: Final = 24
PROCESS_DELAYS: Final = Delays(0.0005, 0.005)
"""Of a message between the processes of a live fleet on one machine: a request is at the worker's engine, and
its first token at the router, 7 to 9 ms later than their steps alone take."""
STEP_OVERHEAD_PS: Final = (700_000_000, 1_300_000_000)
"""What a live worker takes between two steps, from an idle machine to one whose cores others use, too."""


@dataclass(frozen=True, slots=True)
class DelayedRuns:
    """Two runs or more."""

    runs: Sequence[Run]

    @property
    def mean(self) -> Run:
        """The means of their figures; `answered` is the least of them."""
        runs = self.runs
        causes = {cause: None for run in runs for cause in run.missed_percent}
        return Run(
            answered=min(run.answered for run in runs),
            hit_percent=fmean(run.hit_percent for run in runs),
            first_token_p50_ms=fmean(run.first_token_p50_ms for run in runs),
            first_token_p90_ms=fmean(run.first_token_p90_ms for run in runs),
            missed_percent={
                cause: fmean(run.missed_percent.get(cause, 0.0) for run in runs) for cause in causes
            },
        )

    @property
    def deviation_points(self) -> float:
        """Standard deviation of one run's hit rate."""
        return stdev(run.hit_percent for run in self.runs)


def delayed_runs(
    requests: Sequence[TraceRequest],
    replica: ReplicaSettings,
    *,
    replicas: int,
    routing: str,
    count: int = SIMULATED_RUNS,
) -> DelayedRuns:
    """`requests` in `count` simulations of replicas like `replica` behind a router; each delays otherwise."""
    return DelayedRuns(
        [
            Run.of_report(
                simulate(
                    requests,
                    SimulationSettings(
                        replica=_with_overhead(replica, seed),
                        replicas=replicas,
                        routing=routing,
                        seed=seed,
                        delays=PROCESS_DELAYS,
                    ),
                )
            )
            for seed in range(count)
        ]
    )


def _with_overhead(replica: ReplicaSettings, seed: int) -> ReplicaSettings:
    """The replica whose steps take longer by what is drawn for `seed`."""
    times = replica.step_times
    overhead_ps = random.Random(seed).randint(*STEP_OVERHEAD_PS)
    return replace(replica, step_times=replace(times, base_ps=times.base_ps + overhead_ps))
