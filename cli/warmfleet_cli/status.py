"""`warmfleet status`: the processes of local fleets, with their state and load."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.observe import ProcessReport, observe
from warmfleet_cli.local.state import FleetState, RunFolder, known_fleets
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_table
from warmfleet_cli.router_client import ApiKey
from warmfleet_contracts.names import API_KEY_VARIABLE
from warmfleet_runtime.home import warmfleet_home

FleetName = Annotated[
    str | None, typer.Option("--name", help="Fleet, by metadata.name. Default: the one that is running.")
]


def status(*, name: FleetName = None, api_key: ApiKey = "", output: OutputOption = OutputFormat.TEXT) -> None:
    """Show local fleets: each process with its port, pid, cache and state."""
    home = warmfleet_home()
    fleets = [fleet for fleet in known_fleets(home) if name in {None, fleet.name}]
    if name is not None and not fleets:
        raise not_running(name)
    reports = [(fleet, observe(fleet, RunFolder(home, fleet.name), api_key)) for fleet in fleets]
    if output is OutputFormat.JSON:
        print_json({"fleets": [fleet_record(fleet, processes) for fleet, processes in reports]})
        return
    console = make_console()
    if not reports:
        console.print("no local fleet is running; `warmfleet up` starts one")
    for index, (fleet, processes) in enumerate(reports):
        if index:
            console.print()
        console.print(
            f"{fleet.name}: {fleet_phase(fleet)}, {fleet.urls[0]}/v1, models {', '.join(fleet.served_names)}"
        )
        if fleet.is_running:
            print_processes(console, processes)
            if fleet.scales:
                console.print(scaling_line(fleet))
        else:
            console.print(f"its supervisor has ended; `warmfleet down --name {fleet.name}` removes its state")


def print_processes(console: Console, processes: Sequence[ProcessReport]) -> None:
    """One line per process."""
    columns = ["NAME", "ADDRESS", ">PID", ">KV TOKENS", ">CACHED", ">IN USE", ">RUNNING", ">WAITING"]
    print_table(
        console, [*columns, ">RESTARTS", ">START", ">UP", "STATE"], [_row(process) for process in processes]
    )
    if any(process.wants_key for process in processes):
        console.print(f"loads are not shown: ${API_KEY_VARIABLE} holds no key with admin scope")


def scaling_line(fleet: FleetState) -> str:
    """The last change of the number of workers, and whether the fleet sleeps."""
    asleep = "" if _has_workers(fleet) else "; asleep until a request comes"
    if not fleet.changes:
        return f"autoscaling: no change yet{asleep}"
    last = fleet.changes[-1]
    age = _age(max(0.0, time.time() - last.unix_seconds))
    return (
        f"autoscaling: {last.from_replicas} -> {last.to_replicas} replicas {age} ago, {last.reason}{asleep}"
    )


def _has_workers(fleet: FleetState) -> bool:
    return any(process.role == "worker" for process in fleet.processes)


def fleet_phase(fleet: FleetState) -> str:
    """Starting, Ready or Stopping; Lost if the supervisor ended without removing its state."""
    return fleet.phase if fleet.is_running else "Lost"


def fleet_record(fleet: FleetState, processes: Sequence[ProcessReport]) -> dict[str, Any]:
    """The JSON form of a fleet, for `up` and `status`."""
    record: dict[str, Any] = {
        "name": fleet.name,
        "phase": fleet_phase(fleet),
        "detached": fleet.detached,
        "urls": [f"{url}/v1" for url in fleet.urls],
        "models": fleet.served_names,
        "supervisor_pid": fleet.supervisor.pid,
        "processes": [_process_record(process) for process in processes],
    }
    if fleet.scales:
        record["scaling_changes"] = fleet.changes
        record["asleep"] = not _has_workers(fleet)
    return record


def not_running(name: str | None) -> CliError:
    """The error of a command that needs a running fleet."""
    return CliError(
        f"fleet {name!r} is not running" if name else "no local fleet is running",
        advice="`warmfleet up` starts one",
        exit_code=ExitCode.NOT_RUNNING,
    )


def _process_record(process: ProcessReport) -> dict[str, Any]:
    state, cache = process.state, process.cache
    record: dict[str, Any] = {
        "name": state.name,
        "role": state.role,
        "url": state.url,
        "port": state.port,
        "pid": state.identity.pid if state.identity else None,
        "state": process.phase,
        "restarts": state.restarts,
        "up_seconds": round(_up_seconds(process), 1),
        "ready_after_seconds": state.ready_after_seconds,
        "log": state.log_path,
    }
    if cache is not None:
        record["kv_cache"] = {
            "capacity_tokens": cache.capacity_tokens,
            "cached_tokens": cache.cached_tokens,
            "in_use_tokens": cache.pinned_tokens,
            "block_size_tokens": cache.block_size_tokens,
            "bytes_per_token": cache.kv_bytes_per_token,
        }
    if process.start_seconds:
        record["start_seconds"] = process.start_seconds
    if process.load is not None:
        record["load"] = process.load
    if process.breaker is not None:
        record["breaker"] = process.breaker
    return record


def _row(process: ProcessReport) -> list[str]:
    state, cache, load = process.state, process.cache, process.load
    return [
        state.name,
        state.url,
        str(state.identity.pid) if state.identity else "-",
        f"{cache.capacity_tokens:,}" if cache else "-",
        f"{cache.cached_tokens:,}" if cache else "-",
        f"{cache.pinned_tokens:,}" if cache else "-",
        str(load.running_sequences) if load else "-",
        str(load.waiting_sequences) if load else "-",
        str(state.restarts),
        _start(process),
        _age(_up_seconds(process)) if state.identity else "-",
        process.phase,
    ]


def _start(process: ProcessReport) -> str:
    """Seconds until a worker took requests; its first request is no part of them."""
    phases = {name: seconds for name, seconds in process.start_seconds.items() if name != "first_token"}
    return f"{sum(phases.values()):.1f}s" if "prewarm" in phases else "-"


def _up_seconds(process: ProcessReport) -> float:
    return max(0.0, time.time() - process.state.started_unix_seconds) if process.state.identity else 0.0


def _age(seconds: float) -> str:
    """As kubectl writes it: 42s, 5m, 3h, 2d."""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
