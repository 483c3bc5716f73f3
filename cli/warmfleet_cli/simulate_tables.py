"""Tables of `warmfleet simulate`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.console import Console

from warmfleet_cli.output import make_console, print_table
from warmfleet_operator.scaling.advice import asked_for, because

if TYPE_CHECKING:
    from warmfleet_simulator.grid_search import GridRow
    from warmfleet_simulator.report import Percentiles, Report
    from warmfleet_simulator.scaling_comparison import PolicyResult, ScalingComparison


MAX_CHANGES: Final = 100
"""Of one simulation, that are printed as text."""


def print_comparison(compared: "ScalingComparison") -> None:
    """Bounds and policies, the grids of settings, and where the operator's policy loses."""
    console = make_console()
    _print_fleets(console, compared)
    console.print()
    _print_grids(console, compared)
    console.print()
    for line in _verdict(compared):
        console.print(line)


def _print_fleets(console: Console, compared: "ScalingComparison") -> None:
    """Each against peak-static."""
    peak, peak_seconds = compared.peak_static_replicas, compared.peak_static_replica_seconds

    def cells(name: str, report: "Report") -> list[str]:
        seconds = report.pod_seconds
        return [
            name,
            f"{report.replica_seconds:,.0f}",
            f"{report.replica_seconds / peak_seconds:.2f}",
            f"{seconds.pending:,.0f}",
            f"{seconds.draining:,.0f}",
            _replicas(report),
            _percent(report),
            f"{report.hit_rate:.1%}",
            *_cells(report.first_token_ms, ",.0f"),
        ]

    clairvoyant = compared.clairvoyant_replica_seconds
    rows = [
        cells(f"peak-static: {peak} replicas", compared.fixed[peak]),
        ["clairvoyant", f"{clairvoyant:,.0f}", f"{clairvoyant / peak_seconds:.2f}", *"--------"],
        *(cells(_named(result), result.report) for result in compared.policies),
    ]
    columns = [
        "FLEET", ">REPLICA-SECONDS", ">OF PEAK-STATIC", ">PENDING", ">DRAINING", ">REPLICAS", ">SLO %",
        ">HIT RATE", ">TTFT P50", ">P90", ">P99",
    ]  # fmt: skip
    print_table(console, columns, rows)
    begun = compared.operator.report.timeline[0].total
    bounded = f", Operator with {begun} by its bounds" if begun != compared.first_replicas else ""
    console.print(
        "peak-static: the smallest fleet that meets the objective in the busiest window; clairvoyant: as "
        f"many replicas as each window needs, at least {compared.smallest_fleet}, started in advance; the "
        f"policies begin with {compared.first_replicas}{bounded}: first those with {compared.percent} % or "
        "more by cost, then the others"
    )


def _print_grids(console: Console, compared: "ScalingComparison") -> None:
    """Every setting that was simulated."""
    rows = [
        [
            result.name,
            row.setting,
            f"{'> ' if row.stopped else ''}{row.replica_seconds:,.0f}",
            {"": "", "missed": "< ", "cost": "-"}[row.stopped]
            + ("" if row.stopped == "cost" else f"{row.objective_percent:.1f}"),
            "best" if row.setting == result.setting else _stop(row),
        ]
        for result in sorted(compared.policies, key=lambda result: result.name)
        for row in result.grid
    ]
    print_table(console, ["GRID", ">SETTING", ">REPLICA-SECONDS", ">SLO %", ""], rows)


def result_text(report: "Report") -> str:
    """What a simulation cost, and how many met the objective; or where it was stopped, and why."""
    cost = f"{report.replica_seconds:,.0f} replica-seconds"
    if not report.stopped:
        return f"{cost}, {_percent(report)}% met the objective"
    reason = {"missed": "too many missed the objective", "cost": "another setting costs less"}[report.stopped]
    return f"> {cost}, stopped at {report.virtual_seconds:,.0f} s: {reason}"


def _stop(row: "GridRow") -> str:
    return "" if row.stopped_at_seconds is None else f"stopped at {row.stopped_at_seconds:,.0f} s"


def _named(result: "PolicyResult") -> str:
    return f"{result.name}:{result.setting}" if result.setting else result.name


def _verdict(compared: "ScalingComparison") -> list[str]:
    """Whether the operator's policy reaches the percentage, against the bounds, and what costs less."""
    ours = compared.operator.report
    seconds, peak = ours.replica_seconds, compared.peak_static_replica_seconds
    clairvoyant = compared.clairvoyant_replica_seconds
    reached = (ours.objective_percent or 0.0) >= compared.percent
    reaches = "reaches" if reached else "does not reach"
    of_bounds = f"{seconds / peak:.2f} of peak-static and {seconds / clairvoyant:.2f} of clairvoyant"
    lines = [f"Operator {reaches} {compared.percent} %: {_percent(ours)} %, at {of_bounds}."]
    cheaper = compared.cheaper_than_operator()
    lines += [
        f"It loses to {_named(result)}: {_percent(result.report)} % for {result.report.replica_seconds:,.0f} "
        f"replica-seconds, {1 - result.report.replica_seconds / seconds:.0%} less."
        for result in cheaper
    ]
    if reached and not cheaper:
        lines.append(f"No other policy reaches {compared.percent} % for less.")
    return lines


def _replicas(report: "Report") -> str:
    totals = [counts.total for counts in report.timeline]
    return str(totals[0]) if min(totals) == max(totals) else f"{min(totals)} to {max(totals)}"


def print_reports(reports: "Sequence[Report]") -> None:
    """One row per routing, and below it what the columns mean."""
    console = make_console()
    columns = [
        "ROUTING", ">REPLICAS", ">REPLICA-SECONDS", ">PENDING", ">DRAINING", ">REQUESTS", ">REFUSED",
        ">SLO %", ">HIT RATE", ">TTFT P50", ">P90", ">P99", ">ITL P50", ">P90", ">P99",
    ]  # fmt: skip
    rows = [
        [
            report.routing,
            _replicas(report),
            f"{report.replica_seconds:,.0f}",
            f"{report.pod_seconds.pending:,.0f}",
            f"{report.pod_seconds.draining:,.0f}",
            f"{report.requests:,}",
            f"{sum(report.refused.values()):,}",
            _percent(report),
            f"{report.hit_rate:.1%}",
            *_cells(report.first_token_ms, ",.0f"),
            *_cells(report.inter_token_ms, ",.1f"),
        ]
        for report in reports
    ]
    print_table(console, columns, rows)
    console.print(
        "hit rate: prompt tokens found in a KV cache; milliseconds to the first token and between tokens"
    )
    for report in reports:
        _print_changes(console, report, several=len(reports) > 1)
    if causes := list(dict.fromkeys(cause for report in reports for cause in report.missed_tokens)):
        print_misses(console, reports, causes)


def _print_changes(console: Console, report: "Report", *, several: bool) -> None:
    """When the number of replicas changed, and why."""
    if not report.changes:
        return
    rows = [
        [
            _time(change.at_seconds - report.first_arrival_seconds),
            f"{change.from_replicas} to {change.to_replicas}",
            because(change.decision) if change.decision is not None else "-",
            (asked_for(change.decision.recommendations) if change.decision is not None else "") or "-",
        ]
        for change in report.changes[:MAX_CHANGES]
    ]
    console.print()
    if several:
        console.print(f"{report.routing}:")
    print_table(console, [">AT", "REPLICAS", "BECAUSE", "ASKED FOR"], rows)
    if more := len(report.changes) - len(rows):
        console.print(f"and {more} more, in --output json with the figures that decided")


def _time(seconds: float) -> str:
    """Hours, minutes and seconds since the first arrival."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"


def print_misses(console: Console, reports: "Sequence[Report]", causes: Sequence[str]) -> None:
    """Why the other tokens were computed, and what that cost."""
    rows = [
        [
            report.routing,
            *(_share(report.missed_tokens.get(cause), report.prompt_tokens) for cause in causes),
            f"{sum(report.missed_replica_seconds.values()):,.0f}" if report.missed_tokens else "-",
        ]
        for report in reports
    ]
    console.print()
    columns = ["MISSED TOKENS", *(f">{cause.upper()}" for cause in causes), ">REPLICA-SECONDS"]
    print_table(console, columns, rows)


def _percent(report: "Report") -> str:
    return "-" if report.objective_percent is None else f"{report.objective_percent:.1f}"


def _share(tokens: int | None, of: int) -> str:
    return "-" if tokens is None or not of else f"{tokens / of:.1%}"


def _cells(percentiles: "Percentiles", form: str) -> list[str]:
    values = (percentiles.p50, percentiles.p90, percentiles.p99)
    return ["-" if value is None else format(value, form) for value in values]
