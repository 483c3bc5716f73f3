"""Checks that the ports of a fleet are free."""

import socket

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.local.plan import FleetPlan
from warmfleet_contracts.names import LOCAL_HOST


def require_free_ports(plan: FleetPlan) -> None:
    """Check that every port of the plan can be bound; call it before anything is started.

    Raises:
        CliError: a port is taken; the text names the port and the flag that changes it.
    """
    for process in plan.processes:
        problem = _problem(process.port)
        if problem:
            flag = "--port" if process.role == "router" else "--worker-port"
            raise CliError(
                f"port {process.port} for {process.name} is busy ({problem})",
                advice=f"choose another with {flag}, or stop what listens there",
                exit_code=ExitCode.PORT_BUSY,
            )


def is_free(port: int) -> bool:
    """Whether a server can listen there now."""
    return not _problem(port)


def _problem(port: int) -> str:
    """Why a server cannot listen there; empty if it can."""
    with socket.socket() as listener:
        # As the servers do: a port whose last connections are in TIME_WAIT is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOCAL_HOST, port))
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return ""
