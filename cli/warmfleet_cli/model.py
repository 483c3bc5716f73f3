"""`warmfleet model`: fetch and list models, and compute the memory that they need."""

from pathlib import Path
from typing import Annotated

import typer

from warmfleet_cli.errors import CliError, ExitCode
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_table
from warmfleet_cli.up import PullDisplay
from warmfleet_contracts.resources.quantities import format_bytes, parse_bytes
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.kv_cache.layout import KvShape
from warmfleet_worker.model.config import load_model_config
from warmfleet_worker.model_store.catalog import CATALOG, catalog_model_path, pull_model

model_app = typer.Typer(
    no_args_is_help=True, help="Fetch and list models, and compute the size of their KV cache."
)

_ELEMENT_BYTES = {"Float32": 4, "BFloat16": 2, "Float16": 2}

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
        console.print(f"{name} is at {path} ({_readable(_folder_bytes(path))})")


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
        [name, _readable(_folder_bytes(path)) if path else "-", str(path) if path else "not pulled"]
        for name, path in paths.items()
    ]
    print_table(make_console(), ["NAME", ">SIZE", "PATH"], rows)


@model_app.command(
    epilog="Example: warmfleet model size smollm2-135m-instruct --kv-size 512Mi --dtype BFloat16"
)
def size(
    model: Annotated[str, typer.Argument(help="Catalog name of a pulled model, or a model folder.")],
    *,
    kv_size: Annotated[str, typer.Option(help="Size of the KV cache, as a Kubernetes quantity.")] = "512Mi",
    dtype: Annotated[
        str | None, typer.Option(help="Type of the KV cache: Float32, BFloat16, Float16. Default: all.")
    ] = None,
    block_size_tokens: Annotated[int, typer.Option(min=1, max=128, help="Tokens per block.")] = 16,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Compute the bytes per token of a model's KV cache, and how many tokens a KV cache holds."""
    if dtype is not None and dtype not in _ELEMENT_BYTES:
        raise typer.BadParameter(f"{dtype!r} is not one of {', '.join(_ELEMENT_BYTES)}", param_hint="--dtype")
    try:
        kv_bytes = parse_bytes(kv_size)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--kv-size") from None
    path = _model_folder(model)
    config = load_model_config(path)
    shapes = {
        name: KvShape(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            element_bytes=element_bytes,
        )
        for name, element_bytes in _ELEMENT_BYTES.items()
        if dtype in {None, name}
    }
    blocks = {name: kv_bytes // (shape.bytes_per_token * block_size_tokens) for name, shape in shapes.items()}
    weights_bytes = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    if output is OutputFormat.JSON:
        print_json(
            {
                "model": model,
                "architecture": config.architecture,
                "max_position_tokens": config.max_position,
                "weights_bytes": weights_bytes,
                "kv_cache_bytes": kv_bytes,
                "kv_cache": [
                    {
                        "dtype": name,
                        "bytes_per_token": shape.bytes_per_token,
                        "blocks": blocks[name],
                        "tokens": blocks[name] * block_size_tokens,
                    }
                    for name, shape in shapes.items()
                ],
            }
        )
        return
    console = make_console()
    console.print(f"{model}: {config.architecture}, context {config.max_position:,} tokens")
    console.print(f"weights on disk: {_readable(weights_bytes)}")
    sizes = f"{config.layers} layers x {config.kv_heads} KV heads x {config.head_dim}"
    console.print(f"KV bytes per token: 2 x {sizes} x bytes of the type")
    console.print()
    rows = [
        [name, f"{shape.bytes_per_token:,}", f"{blocks[name] * block_size_tokens:,}", f"{blocks[name]:,}"]
        for name, shape in shapes.items()
    ]
    held = f">TOKENS IN {format_bytes(kv_bytes)}"
    print_table(console, ["KV TYPE", ">BYTES/TOKEN", held, f">BLOCKS OF {block_size_tokens}"], rows)


def _model_folder(model: str) -> Path:
    if model in CATALOG:
        path = catalog_model_path(model, warmfleet_home())
        if path is None:
            raise CliError(
                f"{model} is not on this machine",
                advice=f"`warmfleet model pull {model}` fetches it",
                exit_code=ExitCode.MODEL,
            )
        return path
    if (Path(model) / "config.json").is_file():
        return Path(model)
    raise CliError(
        f"{model!r} is neither in the catalog nor a model folder",
        advice="`warmfleet model list` shows the catalog",
        exit_code=ExitCode.MODEL,
    )


def _folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def _readable(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"
