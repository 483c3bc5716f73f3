"""Entry point of the `warmfleet` command: registers its commands and maps errors to exit codes."""

from collections.abc import Callable
from platform import python_version
from typing import Any, Final

import typer
from typer.core import TyperGroup

from warmfleet_runtime.memory import importing

with importing():
    from warmfleet_cli.bench.app import bench_app
    from warmfleet_cli.chat import chat
    from warmfleet_cli.devcluster import devcluster_app
    from warmfleet_cli.doctor.command import doctor
    from warmfleet_cli.down import down
    from warmfleet_cli.errors import EXIT_CODES_HELP, ExitCode, exit_code_of
    from warmfleet_cli.keys import keys_app
    from warmfleet_cli.model.command import model_app
    from warmfleet_cli.output import OutputFormat, OutputOption, print_error, print_json
    from warmfleet_cli.record import record
    from warmfleet_cli.simulate import simulate
    from warmfleet_cli.status import status
    from warmfleet_cli.top.command import top
    from warmfleet_cli.up import up
    from warmfleet_cli.why import why
    from warmfleet_contracts.cache.contract_versions import CONTRACT_VERSION
    from warmfleet_contracts.errors import WarmfleetError
    from warmfleet_contracts.names import API_VERSION
    from warmfleet_runtime.version import package_version

# A new command: add it to `_COMMANDS`, or a group by `add_typer` below.
_COMMANDS: Final[dict[Callable[..., None], str]] = {
    up: "warmfleet up -f examples/smollm2.yaml --replicas 3 --detach",
    status: "warmfleet status --output json",
    top: "warmfleet top -f examples/autoscaling.yaml",
    down: "warmfleet down --name smollm2",
    doctor: "warmfleet doctor --parity smollm2-135m-instruct",
    chat: 'warmfleet chat --once "What is the capital of France?"',
    simulate: "warmfleet simulate --trace conversation.jsonl.gz --replicas 16 --routing all",
    record: "warmfleet record --url http://127.0.0.1:8080 > requests.jsonl",
    why: "warmfleet why ID, with the id from the x-warmfleet-decision header or from `warmfleet chat`",
}


class FleetCommands(TyperGroup):
    """The top-level command group: prints an expected error of any command and exits with its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WarmfleetError as error:
            print_error(error)
            raise typer.Exit(exit_code_of(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None


app = typer.Typer(
    cls=FleetCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Serve language models on a fleet of workers, with routing by the contents of their KV caches.",
    epilog=EXIT_CODES_HELP,
)
for command, example in _COMMANDS.items():
    app.command(epilog=f"Example: {example}\n\n{EXIT_CODES_HELP}")(command)
# Groups of commands.
app.add_typer(model_app, name="model", epilog=EXIT_CODES_HELP)
app.add_typer(keys_app, name="keys", epilog=EXIT_CODES_HELP)
app.add_typer(bench_app, name="bench")
app.add_typer(devcluster_app, name="devcluster", epilog=EXIT_CODES_HELP)


@app.command(epilog="Example: warmfleet version --output json")
def version(*, output: OutputOption = OutputFormat.TEXT) -> None:
    """Print the versions to name in a bug report."""
    versions = {
        "warmfleet": package_version(),
        "python": python_version(),
        "resource": API_VERSION,
        "contract": CONTRACT_VERSION,
    }
    if output is OutputFormat.JSON:
        print_json(versions)
    else:
        typer.echo("  ".join(f"{name} {value}" for name, value in versions.items()))


def main() -> None:
    """Entry point of the `warmfleet` command."""
    app()


if __name__ == "__main__":
    main()
