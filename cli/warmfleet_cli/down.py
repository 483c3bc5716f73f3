"""`warmfleet down`: stop a local fleet."""

import signal
import time
from typing import Annotated, Final

import typer

from warmfleet_cli.errors import CliError
from warmfleet_cli.local.state import FleetState, RunFolder, choose_fleet
from warmfleet_cli.local.supervisor import STOP_AT_ONCE_SIGNAL
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json
from warmfleet_cli.status import FleetName
from warmfleet_runtime.home import warmfleet_home
from warmfleet_runtime.process_identity import is_alive, send_signal

_POLL_SECONDS: Final = 0.1
_MARGIN_SECONDS: Final = 60.0
"""Added to two drain timeouts (routers, then workers)."""
_AT_ONCE_SECONDS: Final = 20.0


def down(
    *,
    name: FleetName = None,
    now: Annotated[
        bool, typer.Option("--now", help="Stop at once, without draining: running requests fail.")
    ] = False,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Stop a local fleet: drain running requests, then stop every process."""
    home = warmfleet_home()
    fleet = choose_fleet(home, name)
    if fleet is not None:
        _stop(fleet, RunFolder(home, fleet.name), at_once=now)
    if output is OutputFormat.JSON:
        print_json({"stopped": fleet.name if fleet else None})
    elif fleet is not None:
        make_console().print(f"{fleet.name} has stopped")
    else:
        make_console().print(f"nothing to stop: no {f'fleet {name!r}' if name else 'local fleet'} is running")


def _stop(fleet: FleetState, folder: RunFolder, *, at_once: bool) -> None:
    if send_signal(fleet.supervisor, STOP_AT_ONCE_SIGNAL if at_once else signal.SIGTERM):
        limit = _AT_ONCE_SECONDS if at_once else 2 * fleet.drain_timeout_seconds + _MARGIN_SECONDS
        _await_end(fleet, limit)
        return
    # The supervisor ended without its own cleanup, and its children ended with it. What is left is signalled
    # by identity: a pid may belong to another process by now.
    for process in fleet.processes:
        if process.identity is not None:
            send_signal(process.identity, signal.SIGKILL)
    with folder.locked():
        folder.clear()


def _await_end(fleet: FleetState, limit_seconds: float) -> None:
    deadline = time.monotonic() + limit_seconds
    while is_alive(fleet.supervisor):
        if time.monotonic() > deadline:
            raise CliError(
                f"{fleet.name} has not stopped after {limit_seconds:.0f} s",
                advice=f"`warmfleet down --now --name {fleet.name}` stops it without draining",
            )
        time.sleep(_POLL_SECONDS)
