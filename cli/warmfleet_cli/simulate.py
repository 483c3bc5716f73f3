"""`warmfleet simulate`: replays a trace through the production router and scheduler, in virtual time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBars

from warmfleet_cli.errors import CliError
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_table

if TYPE_CHECKING:
    from warmfleet_simulator.progress import Progress
    from warmfleet_simulator.report import Percentiles, Report

MAX_REPLICAS: Final = 1024
"""Most endpoints that one router serves."""


def simulate(
    *,
    trace: Annotated[
        Path,
        typer.Option(help="Requests in Mooncake's format, one JSON object per line, plain or gzip."),
    ],
    replicas: Annotated[int, typer.Option(min=1, max=MAX_REPLICAS, help="Size of the fleet.")] = 16,
    routing: Annotated[
        str,
        typer.Option(
            help="Comma-separated ways to route: LowestCost, LeastLoaded, RoundRobin, ConsistentHash, "
            "ApproximatePrefix, or: all."
        ),
    ] = "LowestCost",
    gpu: Annotated[
        str, typer.Option(help="Of a replica: L4, L40S, A100-80GB, H100, H200, MI300X; 8xH100 for eight.")
    ] = "H100",
    model: Annotated[
        str, typer.Option(help="Llama-3.1-8B, Llama-3.1-70B, Qwen3-8B or Qwen3-32B.")
    ] = "Llama-3.1-8B",
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
    """Replay a trace through a fleet of simulated replicas, and compare ways to route.

    Router and scheduler are the production code; a step takes the time that the GPU's data sheet gives it.
    """
    try:
        from warmfleet_simulator.comparison import (  # noqa: PLC0415 - needs what the router needs
            ReplicaChoice,
            compare_routings,
            named_routings,
        )
    except ModuleNotFoundError as error:
        raise CliError(
            f"the simulator runs the router's code, which needs {error.name}",
            advice="pip install 'warmfleet[cli,router]'",
        ) from error
    routings = named_routings(routing)
    choice = ReplicaChoice(
        gpu=gpu,
        model=model,
        step_times=step_times,
        kv_tokens=kv_tokens,
        block_size_tokens=block_size,
        seats=seats,
    )
    settings = choice.settings()
    with _Bars() as bars:
        reports = list(
            compare_routings(
                trace,
                routings,
                replica=settings,
                replicas=replicas,
                seed=seed,
                on_progress=bars.on_progress,
            )
        )
    if output is OutputFormat.JSON:
        print_json({"trace": str(trace), "gpu": gpu, "model": model, "replica": settings, "reports": reports})
    else:
        print_reports(reports)


def print_reports(reports: "Sequence[Report]") -> None:
    """One row per routing, and below it what the columns mean."""
    console = make_console()
    columns = [
        "ROUTING", ">REPLICAS", ">REPLICA-SECONDS", ">REQUESTS", ">REFUSED", ">HIT RATE",
        ">TTFT P50", ">P90", ">P99", ">ITL P50", ">P90", ">P99",
    ]  # fmt: skip
    rows = [
        [
            report.routing,
            str(report.replicas),
            f"{report.replica_seconds:,.0f}",
            f"{report.requests:,}",
            f"{sum(report.refused.values()):,}",
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


def _share(tokens: int | None, of: int) -> str:
    return "-" if tokens is None or not of else f"{tokens / of:.1%}"


def _cells(percentiles: "Percentiles", form: str) -> list[str]:
    values = (percentiles.p50, percentiles.p90, percentiles.p99)
    return ["-" if value is None else format(value, form) for value in values]
