"""A fleet whose size changes: pods start late, drain before they go, and cost from creation to end."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from warmfleet_simulator.replica.settings import ReplicaSettings
from warmfleet_simulator.report import Report
from warmfleet_simulator.scaling.autoscaler import Tick, Wanted
from warmfleet_simulator.scaling.objective import Objective
from warmfleet_simulator.scaling.operator_policy import OperatorAutoscaler
from warmfleet_simulator.simulation import SimulationSettings, simulate
from warmfleet_simulator.step_times import StepTimes
from warmfleet_simulator.traces.request import FIRST_ANSWER_ID, Segment, TraceRequest

REPLICA = ReplicaSettings(StepTimes(2 * 10**10, 2 * 10**8, 10**8, 0), 32, total_blocks=1000, seats=16)
DELAY_SECONDS = 30.0
OBJECTIVE = Objective(
    gpu="L4",
    model="m",
    first_token_milliseconds=3000,
    between_tokens_milliseconds=200,
    start_delay_seconds=DELAY_SECONDS,
)
SETTINGS = SimulationSettings(
    replica=REPLICA,
    replicas=2,
    routing="LowestCost",
    start_delay_seconds=DELAY_SECONDS,
    objective=OBJECTIVE,
)


def steady(
    seconds: float, *, per_second: float, begin: float = 0.0, first: int = 0
) -> Iterator[TraceRequest]:
    """Prompts of 640 tokens that share nothing: an eighth of a second of a replica each."""
    for number in range(round(seconds * per_second)):
        prompt = (Segment(first + number, 640),)
        yield TraceRequest(begin + number / per_second, prompt, 20, FIRST_ANSWER_ID + first + number)


class Scripted:
    """Wants what a list of times and numbers gives."""

    def __init__(self, script: Sequence[tuple[float, int]]) -> None:
        self.script = script
        self.ticks: list[Tick] = []

    def wanted(self, tick: Tick) -> Wanted:
        self.ticks.append(tick)
        numbers = [number for at, number in self.script if at <= tick.now_seconds]
        return Wanted(numbers[-1] if numbers else tick.replicas.spec_replicas)


def run(
    script: Sequence[tuple[float, int]], *, replicas: int, seconds: float = 200.0
) -> tuple[Report, Scripted]:
    scaler = Scripted(script)
    report = simulate(
        steady(200.0, per_second=2.0),
        replace(SETTINGS, replicas=replicas, autoscaler=lambda: scaler),
    )
    return report, scaler


def test_a_pod_is_ready_after_its_delay_and_costs_from_the_beginning() -> None:
    report, scaler = run([(50.0, 3)], replicas=1)

    assert [(counts.pending, counts.ready) for counts in report.timeline] == [(0, 1), (2, 1), (0, 3)]
    grown, ready = report.timeline[1].at_seconds, report.timeline[-1].at_seconds
    assert (grown, ready) == (pytest.approx(50.0, abs=2.0), pytest.approx(grown + DELAY_SECONDS))
    end = 1.0 + report.virtual_seconds
    assert report.replica_seconds == pytest.approx(report.virtual_seconds + 2 * (end - grown))
    assert report.most_replicas == 3
    states = [(tick.replicas.ready, tick.replicas.pending) for tick in scaler.ticks]
    assert (1, 2) in states
    assert states[-1] == (3, 0)


def test_a_shrink_answers_what_the_replica_has_and_loses_no_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report, scaler = run([(50.0, 1)], replicas=3)

    assert (report.answered, report.requests) == (400, 400)
    assert report.timeline[-1].total == 1
    assert capsys.readouterr().out == ""
    assert any(counts.draining for counts in report.timeline)
    assert len(scaler.ticks[-1].ready_uids) == len(scaler.ticks[-1].totals.replicas) == 1


def test_pods_that_are_still_pending_go_first() -> None:
    report, _ = run([(50.0, 4), (60.0, 2)], replicas=2)

    assert [counts.total for counts in report.timeline] == [2, 4, 2]
    assert all(counts.ready == 2 and not counts.draining for counts in report.timeline)


def test_the_operator_reads_the_routers_own_totals() -> None:
    report, scaler = run([], replicas=2)

    (totals,) = [scaler.ticks[-1].totals.models.values()]
    (model,) = totals
    assert model.prompt_tokens == pytest.approx(report.prompt_tokens, rel=0.05)
    assert model.first_token.percentile_ms(0.5) == pytest.approx(report.first_token_ms.p50, rel=0.12)
    assert model.inter_token.percentile_ms(0.5) == pytest.approx(report.inter_token_ms.p50, rel=0.12)
    assert all(replica.capacity_tokens == 32_000 for replica in scaler.ticks[-1].totals.replicas)


def test_an_autoscaler_that_fails_ends_the_simulation_with_its_error() -> None:
    class Failing(Scripted):
        def wanted(self, tick: Tick) -> Wanted:
            raise LookupError(f"at {tick.now_seconds:.0f} s")

    with pytest.raises(LookupError, match="at 2 s"):
        simulate(steady(200.0, per_second=2.0), replace(SETTINGS, autoscaler=lambda: Failing([])))


def test_the_operators_policy_grows_under_load_and_shrinks_after_it() -> None:
    """Twenty requests a second need two and a half replicas, then one in two seconds needs one."""

    def trace() -> Iterator[TraceRequest]:
        yield from steady(300.0, per_second=20.0)
        yield from steady(2100.0, per_second=0.5, begin=300.0, first=10_000)

    settings = replace(SETTINGS, autoscaler=lambda: OperatorAutoscaler(OBJECTIVE.policy(max_replicas=20)))

    first, second = simulate(trace(), settings), simulate(trace(), settings)

    assert first.most_replicas >= 3
    assert first.timeline[-1].total == 1
    assert first.timeline == second.timeline
    assert first.objective_percent is not None
    assert first.objective_percent > 80
    sizes = [counts.pending + counts.ready for counts in first.timeline]
    peak = sizes.index(max(sizes))
    assert sizes[peak:] == sorted(sizes[peak:], reverse=True), "no growth after the first shrink"


def test_every_change_of_the_number_of_replicas_has_the_operators_reason() -> None:
    def trace() -> Iterator[TraceRequest]:
        yield from steady(300.0, per_second=20.0)
        yield from steady(2100.0, per_second=0.5, begin=300.0, first=10_000)

    report = simulate(
        trace(), replace(SETTINGS, autoscaler=lambda: OperatorAutoscaler(OBJECTIVE.policy(max_replicas=20)))
    )

    changes = report.changes
    sizes = {counts.at_seconds: counts.pending + counts.ready for counts in report.timeline}
    assert [sizes[change.at_seconds] for change in changes] == [change.to_replicas for change in changes]
    assert [change.from_replicas for change in changes] == [
        2,
        *(change.to_replicas for change in changes[:-1]),
    ]
    decisions = [change.decision for change in changes if change.decision is not None]
    assert [one.to_replicas for one in decisions] == [change.to_replicas for change in changes]
    growth = [one for one in decisions if one.to_replicas > one.from_replicas]
    shrinks = [one for one in decisions if one.to_replicas < one.from_replicas]
    assert {one.reason for one in growth} <= {"DemandAboveSupply", "LatencyAboveTarget"}
    assert all(max(one.recommendations.values()) >= one.to_replicas for one in growth)
    assert all(one.inputs.first_token_ms > 0 for one in growth)
    assert {one.reason for one in shrinks} == {"DemandBelowSupply"}
    assert all(one.recommendations["compute"] <= one.to_replicas for one in shrinks)


def test_a_change_by_another_autoscaler_has_no_reason() -> None:
    report, _ = run([(50.0, 4)], replicas=2)

    (change,) = report.changes
    assert (change.from_replicas, change.to_replicas, change.decision) == (2, 4, None)
