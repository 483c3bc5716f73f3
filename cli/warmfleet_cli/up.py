"""`warmfleet up`: start a fleet from a ModelDeployment manifest on this machine."""

import secrets
import shlex
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, Self

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from warmfleet_cli.key_file import load_keys
from warmfleet_cli.local.bounds import gib, local_bounds
from warmfleet_cli.local.detached import log_line, start_detached
from warmfleet_cli.local.events import FleetEvent
from warmfleet_cli.local.hub_model import ensure_hub_model
from warmfleet_cli.local.model_folder import local_path_folder
from warmfleet_cli.local.observe import observe
from warmfleet_cli.local.plan import (
    MAX_LOCAL_ROUTERS,
    MAX_LOCAL_WORKERS,
    FleetPlan,
    LocalOptions,
    LocalScaling,
    plan_fleet,
    require_local_support,
    worker_count,
)
from warmfleet_cli.local.ports import require_free_ports
from warmfleet_cli.local.state import RunFolder, already_running
from warmfleet_cli.local.supervisor import supervise
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json
from warmfleet_cli.router_client import ApiKey
from warmfleet_cli.status import fleet_record, print_processes
from warmfleet_contracts.names import API_KEY_VARIABLE, KEYS_FILE_VARIABLE, LOCAL_WORKER_PORT, ROUTER_PORT
from warmfleet_contracts.resources.manifests import load_manifest
from warmfleet_contracts.resources.model_deployment import ModelDeployment
from warmfleet_runtime.home import warmfleet_home
from warmfleet_runtime.memory import available_memory_bytes
from warmfleet_runtime.processors import usable_cores
from warmfleet_worker.model_store.catalog import PullProgress, catalog_model_path, pull_model

_DEFAULT_ORIGIN: Final = "built-in manifest"
_EXAMPLE_QUESTION: Final = "What is the capital of France?"

File = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", help="ModelDeployment manifest. Default: smollm2-135m-instruct, two workers."
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MAX_LOCAL_WORKERS,
        help="Workers; with --autoscale the first number, with which 0 begins asleep if it may. "
        "Default: spec.replicas.",
    ),
]
RouterPort = Annotated[
    int,
    typer.Option(
        "--port", min=1, max=65535, help="Port of the first router; the others take the next ports."
    ),
]
WorkerPort = Annotated[
    int, typer.Option(min=1, max=65535, help="Port of the first worker; the others take the next ports.")
]
Routers = Annotated[int, typer.Option(min=1, max=MAX_LOCAL_ROUTERS, help="Routers.")]
KeysFile = Annotated[
    Path | None,
    typer.Option(
        "--keys-file",
        envvar=KEYS_FILE_VARIABLE,
        help="API keys that routers require, as `warmfleet keys` writes them. Default: no keys required.",
    ),
]
Autoscale = Annotated[
    bool,
    typer.Option(
        "--autoscale",
        help="Add and remove workers by demand, as the operator does: by spec.autoscaling, or between 1 and "
        "half the cores (at least 2, at most 8). Memory bounds them.",
    ),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Run in the background: return when ready.")]


def up(
    file: File = None,
    *,
    replicas: Replicas = None,
    autoscale: Autoscale = False,
    port: RouterPort = ROUTER_PORT,
    worker_port: WorkerPort = LOCAL_WORKER_PORT,
    routers: Routers = 1,
    keys_file: KeysFile = None,
    api_key: ApiKey = "",
    detach: Detach = False,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Serve a ModelDeployment on this machine: start workers and routers, restart them, stop on Ctrl-C."""
    home = warmfleet_home()
    # With JSON on stdout, progress goes to stderr.
    console = make_console(stderr=output is OutputFormat.JSON)
    origin = str(file) if file else _DEFAULT_ORIGIN
    deployment = load_manifest(file, local=True) if file else load_manifest(default_manifest(), local=True)
    if keys_file is not None:
        keys_file = keys_file.absolute()  # not resolved: a link may point elsewhere later
        load_keys(keys_file)
    for notice in require_local_support(
        deployment, origin=origin, has_keys=keys_file is not None, scales=autoscale
    ):
        console.print(f"note: {notice}")
    cores = usable_cores()
    scaling: LocalScaling | None = None
    if autoscale:
        scaling, notice = local_bounds(
            deployment, origin=origin, cores=cores, available_bytes=available_memory_bytes()
        )
        if notice:
            console.print(f"note: {notice}")
    folder = RunFolder(home, deployment.metadata.name)
    running = folder.read()
    if running is not None and running.is_running:
        raise already_running(folder.name)
    options = LocalOptions(
        replicas=replicas,
        routers=routers,
        router_port=port,
        worker_port=worker_port,
        keys_path=keys_file,
    )
    worker_count(deployment, options, scaling)
    plan_with = partial(
        plan_fleet,
        deployment,
        options,
        endpoints_path=folder.endpoints_path,
        cores=cores,
        fleet_uid=secrets.token_hex(4),
        scaling=scaling,
    )
    # Ports are checked before a download begins.
    require_free_ports(plan_with(model_path=Path()))
    plan = plan_with(model_path=ensure_model(deployment, home, console))
    console.print(f"starting {_counted(len(plan.workers), 'worker')} and {_counted(routers, 'router')} ...")
    if scaling is not None:
        console.print(_scaling_line(scaling))
    report = partial(_report, console, folder, plan, detached=detach, output=output, api_key=api_key)
    if detach:
        start_detached(plan, home, report)
    else:
        supervise(plan, folder, report)


def default_manifest() -> str:
    """The manifest used without `-f`; the same as examples/smollm2.yaml."""
    return resources.files("warmfleet_cli").joinpath("default_fleet.yaml").read_text()


def ensure_model(deployment: ModelDeployment, home: Path, console: Console) -> Path:
    """The folder of the deployment's model; a model of catalog or hub that is missing is fetched first.

    Raises:
        CliError: the local path is not a model folder, or the hub refuses.
        ModelError: the catalog does not know the name, or fetching failed.
    """
    source = deployment.spec.model.source
    if source.local_path is not None:
        return local_path_folder(source.local_path)
    if source.hugging_face is not None:
        return ensure_hub_model(deployment, home, console)
    assert source.catalog is not None, "require_local_support refuses the other sources"
    present = catalog_model_path(source.catalog.name, home)
    if present is not None:
        return present
    with PullDisplay(console, source.catalog.name) as display:
        return pull_model(source.catalog.name, home, display)


class PullDisplay(AbstractContextManager["PullDisplay"]):
    """Shows the progress of `pull_model`: a bar on a terminal, otherwise one line per stage."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._stage = ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task(f"model {name}", total=None)
        self._bar: AbstractContextManager[Any] = self._progress if console.is_terminal else nullcontext()

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def __call__(self, progress: PullProgress) -> None:
        if progress.stage != self._stage and (progress.stage == "Done" or not self._console.is_terminal):
            self._console.print(f"model {self._name}: {progress.stage.lower()}")
        self._stage = progress.stage
        self._progress.update(
            self._task,
            description=f"{self._name}: {progress.stage.lower()}",
            completed=progress.done_bytes,
            total=progress.total_bytes or None,
        )


def _report(
    console: Console,
    folder: RunFolder,
    plan: FleetPlan,
    event: FleetEvent,
    *,
    detached: bool,
    output: OutputFormat,
    api_key: str,
) -> None:
    """Print an event; when the fleet is ready, print its processes and how to use it."""
    if event.kind != "FleetReady":
        if event.kind != "Started":
            console.print(log_line(event))
        return
    fleet = folder.read()
    if fleet is None:  # already stopped again
        return
    processes = observe(fleet, folder, api_key)
    if output is OutputFormat.JSON:
        print_json(fleet_record(fleet, processes))
        return
    console.print(event.text)
    console.print()
    print_processes(console, processes)
    console.print()
    console.print(f"URL   {plan.urls[0]}/v1")
    console.print(f"Try   {curl_line(plan.urls[0], plan.served_names[0], with_key=plan.asks_for_keys)}")
    console.print(f"Logs  {folder.path}")
    if detached:
        console.print(f"`warmfleet status` shows the fleet, `warmfleet down --name {plan.name}` stops it.")
    else:
        console.print("Ctrl-C stops the fleet.")


def curl_line(url: str, model: str, *, with_key: bool = False) -> str:
    """A request to paste into a shell; `with_key` sends the key in the environment."""
    body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": _EXAMPLE_QUESTION}]}
    quoted = shlex.quote(msgspec.json.encode(body).decode())
    key = f'-H "authorization: Bearer ${API_KEY_VARIABLE}" ' if with_key else ""
    return f"curl {url}/v1/chat/completions {key}-H 'content-type: application/json' -d {quoted}"


def _scaling_line(scaling: LocalScaling) -> str:
    bounds = f"{scaling.spec.min_replicas} and {_counted(scaling.spec.max_replicas, 'worker')}"
    return f"autoscaling between {bounds}, each of up to {gib(scaling.worker_bytes)} of memory"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
