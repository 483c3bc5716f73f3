"""`warmfleet simulate`: replays traffic through the production router and scheduler, in virtual time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBars

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_table

if TYPE_CHECKING:
    from warmfleet_simulator.comparison import ScalingComparison
    from warmfleet_simulator.progress import Progress
    from warmfleet_simulator.report import Percentiles, Report
    from warmfleet_simulator.scaling.objective import Objective
    from warmfleet_simulator.traces.traffic import Traffic

MAX_REPLICAS: Final = 1024
"""Most endpoints that one router serves."""
DEFAULT_GPU: Final = "H100"
DEFAULT_MODEL: Final = "Llama-3.1-8B"


def simulate(
    *,
    trace: Annotated[
        Path | None,
        typer.Option(help="File of requests, plain or gzip: Mooncake's format, or of `warmfleet record`."),
    ] = None,
    generate: Annotated[
        str,
        typer.Option(
            metavar="NAME[,FIELD=VALUE...]",
            help="In place of a trace: steady, bursty or shared, with other parameters than their defaults.",
        ),
    ] = "",
    replicas: Annotated[int, typer.Option(min=1, max=MAX_REPLICAS, help="Size of the fleet.")] = 16,
    routing: Annotated[
        str,
        typer.Option(
            help="Comma-separated ways to route: LowestCost, LeastLoaded, RoundRobin, ConsistentHash, "
            "ApproximatePrefix, or: all."
        ),
    ] = "LowestCost",
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME[:SETTING]",
            help="What decides the number of replicas: Fixed, Operator, or another autoscaler's with its "
            "setting, as KvUtilization:60 (docs/reference/simulator.md). All but Fixed need --slo.",
        ),
    ] = "Fixed",
    slo: Annotated[
        Path | None, typer.Option(help="File of service level objectives, as examples/slo.yaml.")
    ] = None,
    workload: Annotated[str, typer.Option(help="Which one of the file; not needed for a single one.")] = "",
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Compare the operator's policy with fleets that know the traffic, of --replicas and fewer.",
        ),
    ] = False,
    gpu: Annotated[
        str,
        typer.Option(
            help="Of a replica: L4, L40S, A100-80GB, H100, H200, MI300X; 8xH100 for eight. Default: the "
            "objective's, or H100."
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            help="Llama-3.1-8B or -70B, Qwen3-8B or -32B. Default: the objective's, or Llama-3.1-8B."
        ),
    ] = "",
    step_times: Annotated[
        Path | None,
        typer.Option(help="JSON file with step times that were measured, in place of the GPU's."),
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a replica's KV cache, in place of the GPU's.")
    ] = None,
    block_size: Annotated[int, typer.Option(min=1, max=8192, help="Tokens of a KV block.")] = 512,
    seats: Annotated[int, typer.Option(min=1, max=4096, help="Most sequences that a replica runs.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of the network's delays.")] = 0,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Replay a trace through a fleet of simulated replicas, and compare ways to route and to scale.

    Router and scheduler are the production code; a step takes the time that the GPU's data sheet gives it.
    """
    try:
        from warmfleet_simulator import comparison  # noqa: PLC0415 - needs what the router needs
        from warmfleet_simulator.scaling.objective import read_objective  # noqa: PLC0415
        from warmfleet_simulator.simulation import SimulationSettings  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise CliError(
            f"the simulator runs the router's code, which needs {error.name}",
            advice="pip install 'warmfleet[cli,router]'",
        ) from error
    objective = read_objective(slo, workload) if slo is not None else None
    if objective is None and (compare or policy != comparison.FIXED):
        raise CliError(
            "a policy needs an objective",
            advice="--slo examples/slo.yaml --workload conversation",
            exit_code=ExitCode.USAGE,
        )
    traffic = _traffic(trace, generate, objective)
    routings = comparison.named_routings(routing)
    choice = comparison.ReplicaChoice(
        gpu=gpu or (objective.gpu if objective is not None else DEFAULT_GPU),
        model=model or (objective.model if objective is not None else DEFAULT_MODEL),
        step_times=step_times,
        kv_tokens=kv_tokens,
        block_size_tokens=block_size,
        seats=seats,
    )
    settings = SimulationSettings(
        replica=choice.settings(), replicas=replicas, routing=routings[0], seed=seed, objective=objective
    )
    record: dict[str, Any] = {
        "traffic": traffic.name,
        "gpu": choice.gpu,
        "model": choice.model,
        "replica": settings.replica,
    }
    with _Bars() as bars:
        if compare and objective is not None:
            compared = comparison.compare_scaling(
                traffic, settings=settings, objective=objective, on_progress=bars.on_progress
            )
            record["comparison"] = compared
        else:
            settings = comparison.with_policy(settings, policy, objective)
            compared = None
            reports = list(
                comparison.compare_routings(
                    traffic, routings, settings=settings, on_progress=bars.on_progress
                )
            )
            record["reports"] = reports
    if output is OutputFormat.JSON:
        print_json(record)
    elif compared is not None:
        print_comparison(compared)
    else:
        print_reports(reports)


def _traffic(trace: Path | None, generate: str, objective: "Objective | None") -> "Traffic":
    """What to replay: a file, or a workload, by default the objective's."""
    from warmfleet_simulator.traces.traffic import RecordedTraffic  # noqa: PLC0415
    from warmfleet_simulator.workloads.named import GeneratedTraffic, workload_of  # noqa: PLC0415

    if trace is not None and not generate:
        return RecordedTraffic(trace)
    if generate and trace is None:
        return GeneratedTraffic(workload_of(generate))
    if trace is None and objective is not None and objective.generate is not None:
        return GeneratedTraffic(objective.generate)
    raise CliError(
        "give either a trace or a workload to generate",
        advice="--trace FILE, or --generate steady",
        exit_code=ExitCode.USAGE,
    )


def print_comparison(compared: "ScalingComparison") -> None:
    """The fixed fleets, the bounds, and the operator's policy, each against peak-static."""
    console = make_console()
    peak, peak_seconds = compared.peak_static_replicas, compared.peak_static_replica_seconds

    def cells(name: str, report: "Report") -> list[str]:
        return [
            name,
            f"{report.replica_seconds:,.0f}",
            f"{report.replica_seconds / peak_seconds:.2f}",
            _percent(report),
            f"{report.hit_rate:.1%}",
            *_cells(report.first_token_ms, ",.0f"),
        ]

    rows = [
        cells(f"{replicas} replicas{', peak-static' if replicas == peak else ''}", report)
        for replicas, report in compared.fixed.items()
    ]
    clairvoyant = compared.clairvoyant_replica_seconds
    rows += [
        ["clairvoyant", f"{clairvoyant:,.0f}", f"{clairvoyant / peak_seconds:.2f}", *"-----"],
        cells("Operator", compared.autoscaled),
    ]
    columns = ["FLEET", ">REPLICA-SECONDS", ">OF PEAK-STATIC", ">SLO %", ">HIT RATE"]
    print_table(console, [*columns, ">TTFT P50", ">P90", ">P99"], rows)
    console.print(
        "peak-static: the smallest fleet that meets the objective in the busiest window; clairvoyant: as "
        f"many replicas as each window needs, at least {compared.smallest_fleet}, started in advance"
    )


def print_reports(reports: "Sequence[Report]") -> None:
    """One row per routing, and below it what the columns mean."""
    console = make_console()
    columns = [
        "ROUTING", ">REPLICAS", ">REPLICA-SECONDS", ">REQUESTS", ">REFUSED", ">SLO %", ">HIT RATE",
        ">TTFT P50", ">P90", ">P99", ">ITL P50", ">P90", ">P99",
    ]  # fmt: skip
    rows = [
        [
            report.routing,
            str(report.replicas)
            if report.most_replicas == report.replicas
            else f"{report.replicas} to {report.most_replicas}",
            f"{report.replica_seconds:,.0f}",
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
    if causes := list(dict.fromkeys(cause for report in reports for cause in report.missed_tokens)):
        print_misses(console, reports, causes)


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


class _Bars:
    """A progress bar per routing on stderr; nothing where that is no terminal."""

    def __init__(self) -> None:
        console = make_console(stderr=True)
        self._bars = ProgressBars(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn(
                "{task.fields[requests]:,} requests, {task.fields[virtual_seconds]:,.0f} s of the trace"
            ),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def on_progress(self, routing: str, progress: "Progress") -> None:
        """Show how far one routing is."""
        if routing not in self._tasks:
            self._tasks[routing] = self._bars.add_task(routing, total=1.0, requests=0, virtual_seconds=0.0)
        self._bars.update(
            self._tasks[routing],
            completed=progress.done_ratio,
            requests=progress.requests,
            virtual_seconds=progress.virtual_seconds,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()


def _percent(report: "Report") -> str:
    return "-" if report.objective_percent is None else f"{report.objective_percent:.1f}"


def _share(tokens: int | None, of: int) -> str:
    return "-" if tokens is None or not of else f"{tokens / of:.1%}"


def _cells(percentiles: "Percentiles", form: str) -> list[str]:
    values = (percentiles.p50, percentiles.p90, percentiles.p99)
    return ["-" if value is None else format(value, form) for value in values]
