"""The comparison as a whole, on a short trace, and the runs of which it consists."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from warmfleet_simulator.autoscalers.catalog import AUTOSCALERS
from warmfleet_simulator.errors import TraceError
from warmfleet_simulator.parallel_runs import Run, Work, open_runs, single
from warmfleet_simulator.progress import Progress
from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.report import Report, Stopped
from warmfleet_simulator.scaling.objective import Objective
from warmfleet_simulator.scaling_comparison import ScalingComparison, compare_scaling
from warmfleet_simulator.simulation import Limits, SimulationSettings
from warmfleet_simulator.step_times import StepTimes
from warmfleet_simulator.traces.traffic import RecordedTraffic

OBJECTIVE = Objective(
    gpu="L4",
    model="m",
    first_token_milliseconds=1500,
    between_tokens_milliseconds=200,
    percent=90,
    start_delay_seconds=5,
    peak_window_seconds=10,
)
SETTINGS = SimulationSettings(
    replica=ReplicaSettings(StepTimes(2 * 10**10, 4 * 10**8, 10**8, 0), 512, total_blocks=60, seats=16),
    replicas=4,
    routing="LowestCost",
    objective=OBJECTIVE,
)


class Seen:
    """What a watcher was shown."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.most = 0
        self.running: set[str] = set()
        self.remarks: list[str] = []

    def planned(self, simulations: int) -> None:
        assert simulations > 0

    def began(self, name: str) -> None:
        self.names.append(name)
        self.running.add(name)
        self.most = max(self.most, len(self.running))

    def progressed(self, name: str, progress: Progress) -> None:
        assert name in self.running
        assert 0 <= progress.done_ratio <= 1

    def ended(self, name: str, report: Report) -> None:
        self.running.remove(name)
        assert report.replica_seconds > 0

    def remarked(self, line: str) -> None:
        self.remarks.append(line)


@pytest.fixture
def traffic(tmp_path: Path) -> RecordedTraffic:
    """Ten seconds with a request per second, a busy window at four, and a quiet one."""
    return recorded(
        tmp_path, [*range(0, 10_000, 1000), *range(10_000, 20_000, 250), *range(20_000, 30_000, 2000)]
    )


def recorded(folder: Path, times: list[int]) -> RecordedTraffic:
    """Equal requests at `times`, in milliseconds, that share nothing."""
    path = folder / "trace.jsonl"
    lines = [
        {"timestamp": time, "input_length": 1024, "output_length": 10, "hash_ids": [2 * index, 2 * index + 1]}
        for index, time in enumerate(times)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RecordedTraffic(path)


def settings(replicas: int, limits: Limits | None = None) -> SimulationSettings:
    return replace(SETTINGS, replicas=replicas, limits=limits or Limits())


def test_policies_stand_in_order_beside_the_bounds(traffic: RecordedTraffic) -> None:
    seen = Seen()
    with open_runs(traffic, jobs=1, watcher=seen) as runs:
        result = compare_scaling(runs, SETTINGS, OBJECTIVE)

    names = [one.name for one in result.policies]
    assert sorted(names) == sorted({"Fixed", "Operator", *AUTOSCALERS})
    assert not seen.running
    percents = [one.report.objective_percent or 0.0 for one in result.policies]
    enough = sum(percent >= OBJECTIVE.percent for percent in percents)
    costs = [one.report.replica_seconds for one in result.policies[:enough]]
    assert costs == sorted(costs)
    assert percents[enough:] == sorted(percents[enough:], reverse=True)
    assert max([0.0, *percents[enough:]]) < OBJECTIVE.percent
    assert result.operator.report.stopped is Stopped.NO
    ours = names.index("Operator")
    if ours < enough:
        assert result.cheaper_than_operator() == [
            one for one in result.policies[:ours] if one.report.replica_seconds < costs[ours]
        ]
    (bounds,) = seen.remarks
    assert bounds == (
        f"peak-static: {result.peak_static_replicas} replicas, "
        f"{result.peak_static_replica_seconds:,.0f} replica-seconds; "
        f"clairvoyant: {result.clairvoyant_replica_seconds:,.0f}; policies begin with {result.first_replicas}"
    )
    assert all(
        one.report.timeline[0].total == result.first_replicas
        for one in result.policies
        if one.name != "Fixed"
    )
    assert result.clairvoyant_replica_seconds <= result.peak_static_replica_seconds
    assert fixed_sizes(result) == ["1", "2", "3", "4"]


def fixed_sizes(result: ScalingComparison) -> list[str]:
    (fixed,) = [one for one in result.policies if one.name == "Fixed"]
    return [row.setting for row in fixed.grid]


def test_policies_begin_with_what_the_first_windows_need_however_small(traffic: RecordedTraffic) -> None:
    with open_runs(traffic, jobs=1, watcher=Seen()) as runs:
        result = compare_scaling(runs, SETTINGS, OBJECTIVE)

    percent = result.fixed[1].objective_percent
    assert percent is not None
    assert percent < 50
    assert result.first_replicas == 1


def test_no_fleet_is_simulated_below_one_that_meets_the_objective_in_no_window(tmp_path: Path) -> None:
    steady = recorded(tmp_path, [*range(0, 30_000, 250)])

    with open_runs(steady, jobs=1, watcher=Seen()) as runs:
        result = compare_scaling(runs, SETTINGS, OBJECTIVE)

    assert fixed_sizes(result) == ["2", "3", "4"]
    assert result.smallest_fleet == 2


def test_several_processes_change_no_result(traffic: RecordedTraffic) -> None:
    def three_fleets(replicas: int) -> Work[list[Report]]:
        """The second one depends on the first."""
        first = yield Run(f"{replicas} first", settings(replicas))
        limits = Limits(replica_seconds=first.report.replica_seconds / 2)
        second = yield Run(f"{replicas} second", settings(replicas, limits))
        return [replace_wall_time(first.report), replace_wall_time(second.report)]

    results = []
    for jobs in (1, 2):
        seen = Seen()
        with open_runs(traffic, jobs=jobs, watcher=seen) as runs:
            results.append(runs.complete([three_fleets(replicas) for replicas in (3, 2, 1)]))
        assert seen.most == jobs
        assert not seen.running

    assert results[0] == results[1]
    assert [[report.stopped for report in reports] for reports in results[0]] == [["", "cost"]] * 3


def replace_wall_time(report: Report) -> Report:
    return msgspec.structs.replace(report, wall_seconds=0.0)


def test_a_simulation_ends_once_a_limit_is_exceeded(
    traffic: RecordedTraffic, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = (Limits(), Limits(missed_requests=5), Limits(replica_seconds=10.0))
    with open_runs(traffic, jobs=1, watcher=Seen()) as runs:
        works = [single(Run("fleet", settings(1, limit))) for limit in limits]
        whole, missed, cost = [one.report for one in runs.complete(works)]

    assert whole.stopped is Stopped.NO
    assert whole.requests - whole.met > 5
    assert (missed.stopped, missed.requests - missed.met) == (Stopped.MISSED, 6)
    assert cost.stopped is Stopped.COST
    assert 10 < cost.replica_seconds < 15
    assert cost.virtual_seconds < whole.virtual_seconds
    assert capfd.readouterr().err == ""


def test_an_error_of_another_process_ends_the_comparison(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("{}\n")
    with (
        pytest.raises(TraceError, match="line 1"),
        open_runs(RecordedTraffic(path), jobs=2, watcher=Seen()) as runs,
    ):
        compare_scaling(runs, SETTINGS, OBJECTIVE)
