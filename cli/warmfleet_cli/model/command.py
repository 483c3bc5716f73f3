"""`warmfleet model`: fetch and list models, and compute the memory that they need."""

from pathlib import Path
from typing import Annotated

import typer

from warmfleet_cli.model.size_command import readable, size
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_table
from warmfleet_cli.up import PullDisplay
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.model_store.catalog import CATALOG, catalog_model_path, pull_model

model_app = typer.Typer(
    no_args_is_help=True, help="Fetch and list models, and compute the memory that they need."
)

Name = Annotated[str, typer.Argument(help="Catalog name; `warmfleet model list` shows them.")]


@model_app.command(epilog="Example: warmfleet model pull smollm2-135m-instruct")
def pull(name: Name, *, output: OutputOption = OutputFormat.TEXT) -> None:
    """Fetch a catalog model; verify every file of one that is already on this machine."""
    console = make_console(stderr=output is OutputFormat.JSON)
    with PullDisplay(console, name) as display:
        path = pull_model(name, warmfleet_home(), display)
    if output is OutputFormat.JSON:
        print_json({"name": name, "path": str(path), "bytes": _folder_bytes(path)})
    else:
        console.print(f"{name} is at {path} ({readable(_folder_bytes(path))})")


@model_app.command("list", epilog="Example: warmfleet model list --output json")
def list_models(*, output: OutputOption = OutputFormat.TEXT) -> None:
    """List the catalog, with the size and path of the models on this machine."""
    home = warmfleet_home()
    paths = {name: catalog_model_path(name, home) for name in sorted(CATALOG)}
    if output is OutputFormat.JSON:
        print_json(
            {
                "models": [
                    {
                        "name": name,
                        "path": str(path) if path else None,
                        "bytes": _folder_bytes(path) if path else None,
                    }
                    for name, path in paths.items()
                ]
            }
        )
        return
    rows = [
        [name, readable(_folder_bytes(path)) if path else "-", str(path) if path else "not pulled"]
        for name, path in paths.items()
    ]
    print_table(make_console(), ["NAME", ">SIZE", "PATH"], rows)


model_app.command(epilog="Example: warmfleet model size smollm2-135m-instruct --context 4096 --users 8")(size)


def _folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
