"""`warmfleet devcluster ...`: a real Kubernetes control plane with process nodes on this machine."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from warmfleet_cli.errors import EXIT_CODES_HELP, CliError, ExitCode
from warmfleet_cli.output import OutputFormat, OutputOption, make_console, print_json, print_table
from warmfleet_devcluster.control_plane.binaries import KUBELET, KUBERNETES_VERSION, find_binaries
from warmfleet_devcluster.lifecycle.running import start_supervisor, stop_devcluster
from warmfleet_devcluster.settings import CONTEXT, DevclusterSettings
from warmfleet_devcluster.state import DevclusterState, StateFolder
from warmfleet_runtime.home import warmfleet_home
from warmfleet_runtime.process_identity import is_alive
from warmfleet_worker.native.build import NativeStepUnavailable, compiled_in, library_in

_QUOTED_BYTES: Final = 16 * 1024 * 1024

StateOption = Annotated[
    Path | None,
    typer.Option("--state", help="Folder of the devcluster. Default: devcluster in the warmfleet home."),
]


def up(
    *,
    nodes: Annotated[int, typer.Option(min=0, help="Process nodes.")] = 2,
    pretend: Annotated[
        list[str] | None,
        typer.Option(
            "--pretend",
            metavar="RESOURCE=COUNT",
            help="Extended resource of every node, without a device behind it.",
        ),
    ] = None,
    hollow: Annotated[int, typer.Option(min=0, help="Nodes whose pods become ready without running.")] = 0,
    real_node: Annotated[
        bool,
        typer.Option(
            "--real-node",
            help="Add a node with a kubelet and containerd; `make kubelet` builds its programs.",
        ),
    ] = False,
    api_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the API server on 127.0.0.1; 0 takes a free one.")
    ] = 0,
    state: StateOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Start a Kubernetes control plane and process nodes, and wait until all are ready. Needs root."""
    home = warmfleet_home()
    binaries = find_binaries(home)
    settings = DevclusterSettings(
        state=(state or home / "devcluster").resolve(),
        home=home,
        binaries=binaries.folder,
        nodes=nodes,
        pretend=dict(_resource(text) for text in pretend or ()),
        hollow=hollow,
        real_node=find_binaries(home, KUBELET).folder if real_node else None,
        api_port=api_port,
        owner=_sudo_user(),
    )
    progress = make_console(stderr=True)
    ready = start_supervisor(settings, lambda text: progress.print(text, style="dim")).ready
    compile_native_step(home, lambda text: progress.print(text, style="dim"))
    folder = StateFolder(settings.state)
    if output is OutputFormat.JSON:
        print_json(
            {
                "apiUrl": ready.api_url,
                "kubernetes": KUBERNETES_VERSION,
                "kubeconfig": str(folder.kubeconfig),
                "context": CONTEXT,
                "imagesValues": str(folder.images_values),
                "binaries": str(binaries.folder),
                "seconds": round(ready.seconds, 1),
            }
        )
        return
    progress.print(
        f"Kubernetes {KUBERNETES_VERSION} is ready after {ready.seconds:.1f} s: {ready.api_url}, "
        f"{settings.addressed_nodes + hollow} nodes"
    )
    if not (home / "models").is_dir():
        progress.print("no model is pulled yet: `make model` fetches the one in the examples")
    # The only lines on stdout, so that a shell can evaluate them.
    console = make_console()
    console.print(f"export KUBECONFIG={folder.kubeconfig}")
    console.print(f'export PATH="{binaries.folder}:$PATH"  # kubectl and helm')
    console.print(f"helm install warmfleet charts/warmfleet -f {folder.images_values}")
    console.print("kubectl apply -f examples/smollm2.yaml")


def compile_native_step(home: Path, report: Callable[[str], None]) -> None:
    """For the workers' image, which has it from `home`: else each pod compiles it for itself, if it can.

    It belongs to the owner of `home`, who could not replace what is root's; pods are of another user.
    """
    report("compiling the native step, unless this version is compiled")
    owner, folder = home.stat(), library_in(home).parent

    def give(path: Path) -> None:
        if path.is_symlink():  # what is not the home's is not given away
            raise NativeStepUnavailable(f"{path} is a link")
        os.chown(path, owner.st_uid, owner.st_gid)
        path.chmod(0o755)

    try:
        folder.mkdir(exist_ok=True)
        give(folder)
        give(compiled_in(home))
    except (NativeStepUnavailable, OSError) as error:
        report(f"workers start later, or compute by PyTorch: {error}")


def down(*, state: StateOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Stop the devcluster and every process in it; its logs stay."""
    folder = _folder(state)
    stopped = stop_devcluster(folder)
    if output is OutputFormat.JSON:
        print_json({"stopped": stopped})
    else:
        make_console().print(
            "the devcluster has ended" if stopped else f"nothing to end: no devcluster in {folder.path}"
        )


def status(*, state: StateOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Show the devcluster's processes and addresses."""
    folder, running = _running(state)
    parts = [
        {
            "name": part.name,
            "pid": part.identity.pid,
            "alive": is_alive(part.identity),
            "log": str(folder.log(part.name)),
        }
        for part in running.components
    ]
    if output is OutputFormat.JSON:
        print_json(
            {
                "phase": running.phase,
                "apiUrl": running.api_url,
                "kubeconfig": str(folder.kubeconfig),
                "nodes": running.nodes,
                "components": parts,
            }
        )
        return
    console = make_console()
    console.print(f"{running.phase}: {running.api_url}, kubeconfig {folder.kubeconfig}")
    rows = [
        [str(p["name"]), str(p["pid"]), "running" if p["alive"] else "ended", str(p["log"])] for p in parts
    ]
    print_table(console, ["COMPONENT", ">PID", "STATE", "LOG"], rows)


def logs(
    component: Annotated[
        str | None, typer.Argument(help="Component to show. Default: list the components.")
    ] = None,
    *,
    lines: Annotated[int, typer.Option(min=1, help="Last lines of the log.")] = 200,
    state: StateOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Show the log of a component of the devcluster, also after it has ended."""
    folder = _folder(state)
    names = sorted(path.stem for path in folder.logs.glob("*.log"))
    if component is None:
        if output is OutputFormat.JSON:
            print_json({"components": names})
        else:
            make_console().print("\n".join(names) or f"no devcluster has run in {folder.path}")
        return
    if component not in names:
        raise CliError(f"no component {component!r}", advice=f"there are: {', '.join(names) or 'none'}")
    with folder.log(component).open("rb") as file:
        file.seek(max(0, folder.log(component).stat().st_size - _QUOTED_BYTES))
        found = file.read(_QUOTED_BYTES).decode(errors="replace").splitlines()[-lines:]
    if output is OutputFormat.JSON:
        print_json({"component": component, "lines": found})
    else:
        typer.echo("\n".join(found))


def kubeconfig(*, state: StateOption = None, output: OutputOption = OutputFormat.TEXT) -> None:
    """Print the path of the devcluster's kubeconfig; ~/.kube/config is never changed."""
    folder, _ = _running(state)
    if output is OutputFormat.JSON:
        print_json({"path": str(folder.kubeconfig), "context": CONTEXT})
    else:
        typer.echo(str(folder.kubeconfig))


_COMMANDS: Final[dict[Callable[..., None], str]] = {
    up: "warmfleet devcluster up --nodes 3 --pretend nvidia.com/gpu=2",
    down: "warmfleet devcluster down",
    status: "warmfleet devcluster status --output json",
    logs: "warmfleet devcluster logs kube-scheduler --lines 20",
    kubeconfig: "export KUBECONFIG=$(warmfleet devcluster kubeconfig)",
}

devcluster_app = typer.Typer(
    no_args_is_help=True,
    help="Run a real Kubernetes control plane on this machine, without containers.",
)
for _command, _example in _COMMANDS.items():
    devcluster_app.command(epilog=f"Example: {_example}\n\n{EXIT_CODES_HELP}")(_command)


def _folder(state: Path | None) -> StateFolder:
    return StateFolder((state or warmfleet_home() / "devcluster").resolve())


def _running(state: Path | None) -> tuple[StateFolder, DevclusterState]:
    folder = _folder(state)
    found = folder.read()
    if found is None or not found.is_running:
        raise CliError(
            f"no devcluster is running in {folder.path}",
            advice="`warmfleet devcluster up` starts one",
            exit_code=ExitCode.NOT_RUNNING,
        )
    return folder, found


def _sudo_user() -> tuple[int, int] | None:
    """User and group that called sudo; None without sudo."""
    user, group = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    return (int(user), int(group)) if user.isdigit() and group.isdigit() else None


def _resource(text: str) -> tuple[str, int]:
    name, equals, count = text.partition("=")
    if not (name and equals and count.isascii() and count.isdigit()):
        raise CliError(
            f"--pretend {text!r} is not RESOURCE=COUNT, like nvidia.com/gpu=2", exit_code=ExitCode.USAGE
        )
    return name, int(count)
