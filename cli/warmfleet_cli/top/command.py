"""The command `warmfleet top`: reads the routers every few seconds and prints until Ctrl-C."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import httpx
import typer
from rich.live import Live
from rich.text import Text

from warmfleet_cli.autoscaled_deployment import read_autoscaled
from warmfleet_cli.local.state import FleetState, choose_fleet
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, printable
from warmfleet_cli.router_client import ApiKey, Url, router_client, router_url
from warmfleet_cli.top.fleet_watch import FleetWatch
from warmfleet_cli.top.readings import read_routers
from warmfleet_cli.top.screen import lines_of
from warmfleet_cli.top.views import ModelView
from warmfleet_contracts.resources.autoscaling_spec import AutoscalingSpec
from warmfleet_operator.scaling.policy import AutoscalingPolicy
from warmfleet_runtime.home import warmfleet_home

FOOT: Final = (
    "QUEUED: prompt tokens to compute. UNIQUE: prompt tokens per second that only",
    "this replica's cache saves.",
)

ManifestFile = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", help="ModelDeployment whose spec.autoscaling advises. Default: the local fleet's."
    ),
]
Interval = Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two readings.")]
Once = Annotated[bool, typer.Option("--once", help="Print once, after two readings.")]


def top(
    *,
    url: Url = None,
    api_key: ApiKey = "",
    file: ManifestFile = None,
    interval: Interval = 2.0,
    once: Once = False,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Watch a fleet: replicas, KV memory, hit rate and misses, queue, wanted replicas and why.

    In a terminal it refreshes until Ctrl-C; in a pipe, with --once and with --output json it prints once,
    after two readings. The wanted number is advice: the operator's policy, computed here.
    """
    fleet = choose_fleet(warmfleet_home(), None) if url is None else None
    local = fleet if fleet is not None and fleet.is_running else None
    urls = local.urls if local is not None else [router_url(url)]
    watch = FleetWatch(_policy(file, local))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(router_client(address, api_key)) for address in urls]
        readings = _rounds(clients, watch, interval)
        console = make_console()
        if once or output is OutputFormat.JSON or not console.is_terminal:
            next(readings)
            views, asleep = next(readings)
            if output is OutputFormat.JSON:
                print_json({"models": views, "asleep": asleep})
            else:
                console.print("\n".join(_lines(views, asleep)))
            return
        with Live(console=console, auto_refresh=False, screen=False) as live:
            for views, asleep in readings:
                live.update(Text("\n".join(_lines(views, asleep))), refresh=True)


def _policy(file: Path | None, fleet: FleetState | None) -> AutoscalingPolicy | None:
    """Of the manifest, or of the local fleet; None where neither has `spec.autoscaling`.

    Raises:
        ManifestError: the file is no ModelDeployment.
        CliError: it has no `spec.autoscaling`.
    """
    if file is not None:
        _, spec = read_autoscaled(file)
        return AutoscalingPolicy.of(spec)
    if fleet is None or fleet.autoscaling is None:
        return None
    return AutoscalingPolicy.of(AutoscalingSpec.model_validate(fleet.autoscaling))


def _rounds(
    clients: Sequence[httpx.Client],
    watch: FleetWatch,
    interval_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[list[ModelView], Sequence[str]]]:
    """Views and names that sleep, one round after the other; a router that stops answering ends them."""
    while True:
        readings = read_routers(clients)
        yield watch.views(readings, time.monotonic()), readings.asleep
        sleep(interval_seconds)


def _lines(views: Sequence[ModelView], asleep: Sequence[str]) -> list[str]:
    names = printable(", ".join(asleep))
    sleeping = [f"asleep       {names}: a request starts a replica", ""] if asleep else []
    if not views:
        return sleeping[:1] or ["no replica is known to the router yet"]
    blocks = [line for view in views for line in (*lines_of(view), "")]
    return [*blocks, *sleeping, *FOOT]
