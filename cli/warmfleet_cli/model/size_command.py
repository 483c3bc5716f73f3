"""`warmfleet model size`: the memory of a worker, for a KV cache or for so many users."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

import typer
from rich.console import Console

from warmfleet_cli.errors import CliError
from warmfleet_cli.local.model_folder import FoundModel, find_model
from warmfleet_cli.model.size import (
    DTYPES,
    WEIGHT_QUANTIZATIONS,
    DoesNotFitError,
    EngineShape,
    Need,
    Room,
    need,
    room,
)
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_table
from warmfleet_contracts.resources.quantities import format_bytes, parse_bytes
from warmfleet_contracts.resources.worker_memory import PROCESS_BYTES
from warmfleet_runtime.home import warmfleet_home
from warmfleet_worker.model.config import ModelConfig, load_model_config
from warmfleet_worker.model.shapes import model_size

_DEFAULT_KV_SIZE: Final = "512Mi"
_DEFAULT_BLOCK_SIZE_TOKENS: Final = 16
_MOST_TOKENS: Final = 16_777_216
_MOST_USERS: Final = 1_000_000


def size(
    model: Annotated[
        str, typer.Argument(help="Catalog name of a pulled model, a model folder, or a manifest.")
    ],
    *,
    context: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=_MOST_TOKENS,
            help="Tokens of each user, prompt and answer together. Default with --users: the longest.",
        ),
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(
            min=1, max=_MOST_USERS, help="Users at once, without a shared prefix. Default with --context: 1."
        ),
    ] = None,
    kv_size: Annotated[
        str | None,
        typer.Option(
            help="Instead: size of the KV cache, as a Kubernetes quantity. Default: the manifest's, or 512Mi."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Of weights and KV cache: Float32, BFloat16, Float16. Default: the manifest's, or all."
        ),
    ] = None,
    weight_quantization: Annotated[
        str | None, typer.Option(help="None, or Int8: weights in 8 bits. Default: the manifest's, or None.")
    ] = None,
    block_size_tokens: Annotated[
        int | None, typer.Option(min=1, max=128, help="Tokens per block. Default: the manifest's, or 16.")
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Compute the memory of a worker: for so many users of so many tokens, or what a KV cache holds."""
    if dtype is not None and dtype not in DTYPES:
        raise typer.BadParameter(f"{dtype!r} is not one of {', '.join(DTYPES)}", param_hint="--dtype")
    if weight_quantization not in {None, *WEIGHT_QUANTIZATIONS}:
        raise typer.BadParameter(
            f"{weight_quantization!r} is not one of {', '.join(WEIGHT_QUANTIZATIONS)}",
            param_hint="--weight-quantization",
        )
    asks_for_users = context is not None or users is not None
    if asks_for_users and kv_size is not None:
        raise typer.BadParameter("is what --context and --users compute: give either", param_hint="--kv-size")
    found = find_model(model, warmfleet_home())
    config = load_model_config(found.path)
    shape = _shape(model, found, config, block_size_tokens)
    if weight_quantization is not None:
        shape = replace(shape, weight_quantization=weight_quantization)
    dtypes = _dtypes(found, dtype)
    console = make_console()
    if asks_for_users:
        context, users = context or shape.longest_tokens, users or 1
        needs = _needs(shape, dtypes, context, users)
        if output is OutputFormat.TEXT:
            _print_model(console, model, found, config)
            _print_needs(console, shape, needs, context, users)
            return
        asked: dict[str, object] = {"context_tokens": context, "users": users, "needs": needs}
    else:
        kv_bytes = _kv_cache_bytes(kv_size, found)
        rooms = [room(shape, name, kv_bytes) for name in dtypes]
        if output is OutputFormat.TEXT:
            _print_model(console, model, found, config)
            _print_rooms(console, shape, rooms, kv_bytes)
            return
        asked = {"kv_cache_bytes": kv_bytes, "kv_cache": rooms}
    print_json(
        {
            "model": model,
            "architecture": config.architecture,
            "parameters": shape.model.parameters,
            "max_position_tokens": config.max_position,
            "longest_sequence_tokens": shape.longest_tokens,
            "weights_bytes": _on_disk_bytes(found),
            "process_bytes": PROCESS_BYTES,
            **asked,
        }
    )


def readable(size_bytes: int) -> str:
    """`260.0 MiB`."""
    return f"{size_bytes / 2**20:,.1f} MiB"


def _shape(model: str, found: FoundModel, config: ModelConfig, block_size_tokens: int | None) -> EngineShape:
    spec = None if found.deployment is None else found.deployment.spec
    if spec is None:
        return EngineShape(
            model=model_size(config), block_size_tokens=block_size_tokens or _DEFAULT_BLOCK_SIZE_TOKENS
        )
    if spec.engine.type != "Warmfleet":
        raise CliError(
            f"{model}: an engine of type {spec.engine.type} takes its memory by rules of its own",
            advice="only engines of type Warmfleet are computed; give the model's folder for those",
        )
    return EngineShape(
        model=model_size(config),
        block_size_tokens=block_size_tokens or spec.kv_cache.block_size_tokens,
        max_model_length_tokens=spec.engine.max_model_length_tokens or 0,
        weight_quantization=spec.engine.weight_quantization,
    )


def _dtypes(found: FoundModel, dtype: str | None) -> Sequence[str]:
    if dtype is None and found.deployment is not None and found.deployment.spec.engine.dtype != "Auto":
        dtype = found.deployment.spec.engine.dtype
    return DTYPES if dtype is None else (dtype,)


def _kv_cache_bytes(kv_size: str | None, found: FoundModel) -> int:
    stated = None if found.deployment is None else found.deployment.spec.kv_cache.size_bytes
    if kv_size is None and stated is not None:
        return stated
    try:
        return parse_bytes(kv_size or _DEFAULT_KV_SIZE)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--kv-size") from None


def _needs(shape: EngineShape, dtypes: Sequence[str], context_tokens: int, users: int) -> list[Need]:
    try:
        return [need(shape, dtype, context_tokens=context_tokens, users=users) for dtype in dtypes]
    except DoesNotFitError as error:
        raise typer.BadParameter(str(error), param_hint="--context") from None


def _print_model(console: Console, model: str, found: FoundModel, config: ModelConfig) -> None:
    console.print(f"{model}: {config.architecture}, context {config.max_position:,} tokens")
    console.print(f"weights on disk: {readable(_on_disk_bytes(found))}")
    sizes = f"{config.layers} layers x {config.kv_heads} KV heads x {config.head_dim}"
    console.print(f"KV bytes per token: 2 x {sizes} x bytes of the type")
    console.print()


def _print_rooms(console: Console, shape: EngineShape, rooms: Sequence[Room], kv_bytes: int) -> None:
    rows = [
        [
            one.dtype,
            f"{one.bytes_per_token:,}",
            f"{one.tokens:,}",
            f"{one.blocks:,}",
            readable(one.pod_bytes),
        ]
        for one in rooms
    ]
    held = f">TOKENS IN {format_bytes(kv_bytes)}"
    blocks = f">BLOCKS OF {shape.block_size_tokens}"
    print_table(console, ["TYPE", ">BYTES/TOKEN", held, blocks, ">POD MEMORY"], rows)


def _print_needs(
    console: Console, shape: EngineShape, needs: Sequence[Need], context_tokens: int, users: int
) -> None:
    at_once = "1 user" if users == 1 else f"{users:,} users at once"
    console.print(f"For {at_once}, each with {context_tokens:,} tokens and no shared prefix:")
    console.print()
    rows = [
        [
            one.dtype,
            f"{one.bytes_per_token:,}",
            f"{one.blocks:,}",
            format_bytes(one.kv_cache_size_bytes),
            readable(one.memory.weights_bytes),
            readable(one.memory.workspace_bytes),
            readable(PROCESS_BYTES),
            readable(one.pod_bytes),
        ]
        for one in needs
    ]
    columns = [
        *("TYPE", ">BYTES/TOKEN", f">BLOCKS OF {shape.block_size_tokens}", ">kvCache.size", ">WEIGHTS"),
        *(">WORKSPACE", ">PROCESS", ">POD MEMORY"),
    ]
    print_table(console, columns, rows)


def _on_disk_bytes(found: FoundModel) -> int:
    return sum(file.stat().st_size for file in found.path.glob("*.safetensors"))
