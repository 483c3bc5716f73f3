"""`warmfleet doctor`: this machine in ten lines."""

from platform import python_version

import typer

from warmfleet_cli.doctor.checks import Check, State, machine_checks
from warmfleet_cli.doctor.facts import read_facts
from warmfleet_cli.errors import ExitCode
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_table
from warmfleet_runtime.home import warmfleet_home
from warmfleet_runtime.version import package_version


def doctor(*, output: OutputOption = OutputFormat.TEXT) -> None:
    """Show what this machine brings for an engine, and what to do where that is too little."""
    versions = f"warmfleet {package_version()}, Python {python_version()}"
    checks = machine_checks(read_facts(warmfleet_home()), versions)
    if output is OutputFormat.JSON:
        print_json({"checks": checks})
    else:
        print_table(make_console(), ["CHECK", "STATE", "FOUND", "TO DO"], [_row(check) for check in checks])
    if any(check.state is State.BAD for check in checks):
        raise typer.Exit(ExitCode.FAILED)


def _row(check: Check) -> list[str]:
    return [check.name, check.state.value, check.found, check.advice]
