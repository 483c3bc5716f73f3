"""`warmfleet doctor`: this machine in ten lines, or what its kernels compute."""

from platform import python_version
from typing import Annotated

import typer

from warmfleet_cli.doctor.checks import Check, State, machine_checks
from warmfleet_cli.doctor.facts import read_facts
from warmfleet_cli.doctor.parity import measure_parity, print_parity
from warmfleet_cli.errors import ExitCode
from warmfleet_cli.local.model_folder import find_model
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_table
from warmfleet_contracts.resources.worker_memory import ELEMENT_BYTES
from warmfleet_runtime.home import warmfleet_home
from warmfleet_runtime.version import package_version

_DEFAULT_MODEL = "smollm2-135m-instruct"


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            help=f"With --parity: catalog name of a pulled model, a model folder, or a manifest. "
            f"Default: {_DEFAULT_MODEL}."
        ),
    ] = None,
    *,
    parity: Annotated[
        bool,
        typer.Option(
            "--parity",
            help="Instead: compute a text with the engine's kernels and in float64, and compare each layer.",
        ),
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="With --parity: Auto, Float32, BFloat16, Float16. Default: the manifest's, or Auto."
        ),
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show what this machine brings for an engine, and what to do where that is too little."""
    if parity:
        _parity(model or _DEFAULT_MODEL, dtype, output)
        return
    for value, hint in ((model, "MODEL"), (dtype, "--dtype")):
        if value is not None:
            raise typer.BadParameter("only --parity takes it", param_hint=hint)
    versions = f"warmfleet {package_version()}, Python {python_version()}"
    checks = machine_checks(read_facts(warmfleet_home()), versions)
    if output is OutputFormat.JSON:
        print_json({"checks": checks})
    else:
        print_table(make_console(), ["CHECK", "STATE", "FOUND", "TO DO"], [_row(check) for check in checks])
    if any(check.state is State.BAD for check in checks):
        raise typer.Exit(ExitCode.FAILED)


def _parity(model: str, dtype: str | None, output: OutputFormat) -> None:
    if dtype is not None and dtype not in ELEMENT_BYTES:
        raise typer.BadParameter(f"{dtype!r} is not one of {', '.join(ELEMENT_BYTES)}", param_hint="--dtype")
    found = find_model(model, warmfleet_home())
    if dtype is None:
        dtype = found.deployment.spec.engine.dtype if found.deployment is not None else "Auto"
    make_console(stderr=True).print(f"computing {model} twice, once in float64 ...")
    report = measure_parity(found.path, dtype)
    if output is OutputFormat.JSON:
        print_json({"explained": report.is_explained, "unexplained": report.unexplained, "report": report})
    else:
        print_parity(make_console(), report)
    if not report.is_explained:
        raise typer.Exit(ExitCode.FAILED)


def _row(check: Check) -> list[str]:
    return [check.name, check.state.value, check.found, check.advice]
