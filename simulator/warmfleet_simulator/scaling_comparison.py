"""Compares the operator's policy with fleets that know the traffic and with other autoscalers at their best.

First fleets of a fixed size are simulated, from which the bounds follow; then every policy, which begins with
what is needed before it can change anything, each of the others at all settings of its grid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from warmfleet_simulator.autoscalers.catalog import AUTOSCALERS, setting_text
from warmfleet_simulator.comparison import FIXED, OPERATOR, SimulatedDeployment, with_policy
from warmfleet_simulator.errors import SimulationError
from warmfleet_simulator.grid_search import Grid, GridRow, best_setting
from warmfleet_simulator.parallel_runs import Run, Runs, Work, single
from warmfleet_simulator.report import Report, Stopped
from warmfleet_simulator.scaling.bounds import (
    Met,
    clairvoyant_seconds,
    meets_a_window,
    needed_at_first,
    peak_requests_per_second,
    peak_static,
    windows_needed,
)
from warmfleet_simulator.scaling.objective import Objective
from warmfleet_simulator.simulation import Simulated, SimulationSettings


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True):
    """A policy at its best setting."""

    name: str
    setting: str
    """Of the operator's policy the deployment that it is of; empty where it has its defaults."""
    report: Report
    grid: Sequence[GridRow]
    """All settings, from that which keeps the fewest replicas; empty for the operator's policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingComparison:
    """Policies beside what fleets cost that know the traffic."""

    percent: int
    """Of the requests that must meet the objective."""
    peak_static_replicas: int
    """The smallest fleet of fixed size that meets the objective in the busiest window."""
    peak_static_replica_seconds: float
    clairvoyant_replica_seconds: float
    """Of a fleet that knows each window in advance."""
    smallest_fleet: int
    """No smaller one was simulated; the clairvoyant fleet has as many replicas at least."""
    first_replicas: int
    """With which every policy begins; that of a deployment within its bounds."""
    fixed: Mapping[int, Report]
    """By size, from the largest on."""
    policies: Sequence[PolicyResult]
    """Those that reach the percentage, by what they cost; then the others, by percentage."""

    @property
    def operator(self) -> PolicyResult:
        """The result of the operator's own policy."""
        return next(result for result in self.policies if result.name == OPERATOR)

    def cheaper_than_operator(self) -> list[PolicyResult]:
        """The policies that reach the percentage for less than the operator's."""
        ours = self.operator.report
        return [
            result
            for result in self.policies
            if (result.report.objective_percent or 0.0) >= self.percent
            and result.report.replica_seconds < ours.replica_seconds
        ]


def compare_scaling(
    runs: Runs,
    settings: SimulationSettings,
    objective: Objective,
    deployed: SimulatedDeployment | None = None,
) -> ScalingComparison:
    """Fleets of `settings.replicas` and fewer, fixed, then all policies, the operator's as `deployed`.

    Raises:
        TraceError: a line of the trace.
        SimulationError: the trace is empty, or the largest fleet does not meet the objective.
    """
    settings = replace(settings, autoscaler=None, objective=objective)
    settings_to_try = sum(len(other.grid(1.0)) for other in AUTOSCALERS.values())
    runs.plan(settings.replicas + 1 + settings_to_try)
    fleets = _fixed_fleets(runs, settings, objective)
    met: dict[int, Sequence[Met]] = {replicas: fleet.met for replicas, fleet in fleets.items()}
    if not met[settings.replicas]:
        raise SimulationError(f"{runs.traffic.name} has no requests")
    peak = peak_static(met, objective)
    if peak is None:
        raise SimulationError(
            f"{settings.replicas} replicas do not meet the objective in the busiest window: give more"
        )
    until_seconds = max(request.arrival_seconds for request in met[peak])
    needed = windows_needed(met, objective, until_seconds=until_seconds)
    begin = replace(settings, replicas=needed_at_first(needed, objective))
    reports = {replicas: fleet.report for replicas, fleet in fleets.items()}
    clairvoyant = clairvoyant_seconds(needed, objective)
    operator = with_policy(begin, OPERATOR, objective, deployed)
    bounded = f", {OPERATOR} with {operator.replicas}" if operator.replicas != begin.replicas else ""
    runs.remark(
        f"peak-static: {peak} replicas, {reports[peak].replica_seconds:,.0f} replica-seconds; "
        f"clairvoyant: {clairvoyant:,.0f}; policies begin with {begin.replicas}{bounded}"
    )
    capacity = peak_requests_per_second(met[peak], objective) / peak
    runs.plan(1 + settings_to_try)
    others = [
        _searched(
            name,
            [setting_text(setting) for setting in other.grid(capacity)],
            begin,
            objective,
            requests=reports[peak].requests,
        )
        for name, other in AUTOSCALERS.items()
    ]
    results = [
        *runs.complete([_operator(operator, deployed.name if deployed else ""), *others]),
        fixed_result(reports, objective.percent),
    ]
    return ScalingComparison(
        percent=objective.percent,
        peak_static_replicas=peak,
        peak_static_replica_seconds=reports[peak].replica_seconds,
        clairvoyant_replica_seconds=clairvoyant,
        smallest_fleet=min(reports),
        first_replicas=begin.replicas,
        fixed=reports,
        policies=ranked(results, objective.percent),
    )


def _fixed_fleets(runs: Runs, settings: SimulationSettings, objective: Objective) -> dict[int, Simulated]:
    """By size, from the largest to one replica, or to the first fleet that meets the objective in no window.

    A fleet that is much too small for the whole trace can be what its quiet windows need. Some more may be
    simulated at the same time.
    """
    fleets: dict[int, Simulated] = {}
    sizes = list(range(settings.replicas, 0, -1))
    while sizes:
        now, sizes = sizes[: runs.jobs], sizes[runs.jobs :]
        done = runs.complete(
            [single(Run(f"{size} replicas", replace(settings, replicas=size))) for size in now]
        )
        for size, fleet in zip(now, done, strict=True):
            fleets[size] = fleet
            if not meets_a_window(fleet.met, objective):
                return fleets
    return fleets


def _operator(settings: SimulationSettings, deployment: str) -> Work[PolicyResult]:
    simulated = yield Run(OPERATOR, settings)
    return PolicyResult(name=OPERATOR, setting=deployment, report=simulated.report, grid=[])


def _searched(
    name: str, grid: Sequence[str], settings: SimulationSettings, objective: Objective, requests: int
) -> Work[PolicyResult]:
    """The search for a policy's best setting."""
    search = best_setting(grid, percent=objective.percent, requests=requests)
    trial = next(search)
    while True:
        policy = f"{name}:{trial.setting}"
        run = Run(policy, replace(with_policy(settings, policy, objective), limits=trial.limits))
        simulated = yield run
        try:
            trial = search.send(simulated.report)
        except StopIteration as end:
            found: Grid = end.value
            return PolicyResult(name=name, setting=found.best, report=found.report, grid=found.rows)


def fixed_result(fixed: Mapping[int, Report], percent: int) -> PolicyResult:
    """Of fleets of fixed size the smallest that meets the objective in the whole trace."""
    rows = [
        GridRow(
            setting=str(replicas),
            replica_seconds=fixed[replicas].replica_seconds,
            objective_percent=fixed[replicas].objective_percent or 0.0,
            stopped=Stopped.NO,
            stopped_at_seconds=None,
        )
        for replicas in sorted(fixed)
    ]
    enough = [row for row in rows if row.objective_percent >= percent]
    best = enough[0] if enough else max(rows, key=lambda row: row.objective_percent)
    return PolicyResult(name=FIXED, setting=best.setting, report=fixed[int(best.setting)], grid=rows)


def ranked(results: Sequence[PolicyResult], percent: int) -> list[PolicyResult]:
    """Those that reach the percentage by what they cost, then the others by percentage."""

    def rank(result: PolicyResult) -> tuple[bool, float, float]:
        met, seconds = result.report.objective_percent or 0.0, result.report.replica_seconds
        return (False, seconds, -met) if met >= percent else (True, -met, seconds)

    return sorted(results, key=rank)
