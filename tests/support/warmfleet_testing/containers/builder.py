"""buildah with a store of its own: a base image from Debian's packages, and this project's images on it."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from warmfleet_runtime.die_with_parent import bound_command
from warmfleet_testing.resources.chart_render import REPOSITORY

BASE: Final = "docker.io/library/python:3.11-slim-bookworm"
"""The Dockerfile's default base. What is made here stands in: builders look into the store first."""
REGISTRY: Final = "localhost/warmfleet"
TAG: Final = "checked"
_BUILD_SECONDS: Final = 1500
_REMOVALS: Final = 20
_PACKAGES: Final = "ca-certificates,python3,python3-venv,python3-pip"
# As Debian's slim images leave them out.
_LEFT_OUT: Final = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "var/lib/apt/lists",
)
_AUTHORITIES: Final = Path("/usr/local/share/ca-certificates")
"""Those that this machine's owner added, such as a proxy's."""
_OWN_NAMESPACES: Final = (
    *("/usr/bin/unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("--propagation", "private"),
)


class BuildFailedError(AssertionError):
    """A command failed; the text is the end of its output."""


class ImageStore:
    """All that is written is below `folder`.

    Commands run in namespaces of their own and die with this process: a killed builder leaves no mount.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authorities = folder / "authorities.pem"
        if found := sorted(_AUTHORITIES.glob("*.crt")):
            self._authorities.write_text("".join(file.read_text() for file in found))
        self._configuration = folder / "storage.conf"
        self._configuration.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{folder / "store"}"\nrunroot = "{folder / "run"}"\n'
        )

    def make_base(self, name: str = BASE, debian: str = "bookworm") -> None:
        """A Debian with its Python, by the name of an official image; a store that has the name keeps it."""
        if self.has(name):
            return
        root = self.folder / "root"
        self._run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", debian, str(root))
        self._run("chroot", str(root), "apt-get", "clean")
        for left_out in _LEFT_OUT:
            shutil.rmtree(root / left_out, ignore_errors=True)
        for compiled in root.glob("usr/lib/python3*/**/__pycache__"):
            shutil.rmtree(compiled)
        (root / "usr/bin/python").symlink_to("python3")
        container = self._run("buildah", "from", "scratch").strip()
        self._run("buildah", "add", "--quiet", container, str(root), "/")
        self._run("buildah", "config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", container)
        self._run("buildah", "commit", "--quiet", "--rm", container, name)
        shutil.rmtree(root)

    def has(self, name: str) -> bool:
        """Whether an image is in the store."""
        return name in self._run("buildah", "images", "--format", "{{.Name}}:{{.Tag}}").split()

    def build(self, *targets: str, catalog_model: str = "", base: str = BASE, tag: str = TAG) -> str:
        """Build `targets` by images/build.py; returns what it printed."""
        return self._run(*self.build_command(*targets, catalog_model=catalog_model, base=base, tag=tag))

    def build_command(
        self, *targets: str, catalog_model: str = "", base: str = BASE, tag: str = TAG
    ) -> list[str]:
        """The command line by which `targets` are built."""
        command = [sys.executable, str(REPOSITORY / "images" / "build.py"), "--engine", "buildah"]
        command += ["--registry", REGISTRY, "--tag", tag, "--catalog-model", catalog_model]
        if base != BASE:
            command += ["--build-arg", f"PYTHON_IMAGE={base}"]
        command += ["--values", str(self.folder / "images.values.yaml")]
        for target in targets:
            command += ["--target", target]
        if self._authorities.exists():
            command += ["--ca-file", str(self._authorities)]
        return command

    def shell(self, script: str) -> str:
        """What a script prints that calls `make images` and buildah, in the tree, as a person would."""
        return self._run("bash", "-euc", script)

    def run(self, name: str, *command: str) -> str:
        """What a command in an image prints, as the image's user."""
        container = self._run("buildah", "from", "--pull-never", name).strip()
        try:
            return self._run("buildah", "run", container, "--", *command)
        finally:
            self._run("buildah", "rm", container)

    def inspect(self, target: str) -> Any:
        """The image's configuration, as the OCI specification has it."""
        shown = self._run("buildah", "inspect", "--type", "image", reference(target))
        return json.loads(shown)["OCIv1"]

    def size_bytes(self, name: str) -> int:
        """Of all layers of an image, unpacked."""
        container = self._run("buildah", "from", "--pull-never", name).strip()
        script = (
            f'du --summarize --apparent-size --block-size=1 --one-file-system "$(buildah mount {container})"'
        )
        size = self._run("sh", "-ec", script).split()[0]
        self._run("buildah", "rm", container)
        return int(size)

    def export(self, name: str, archive: Path) -> None:
        """Write an image as `docker save` does; `archive` may be a FIFO."""
        self._run("buildah", "push", "--quiet", name, f"docker-archive:{archive}:{name}")

    def begin(self, *command: str) -> "subprocess.Popen[str]":
        """Start a command; to kill the process is to kill all that it started."""
        program = shutil.which(command[0])
        assert program is not None, command[0]
        return subprocess.Popen(
            bound_command([*_OWN_NAMESPACES, program, *command[1:]]),
            cwd=REPOSITORY,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _environment(self) -> dict[str, str]:
        environment = {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(self._configuration),
            "BUILDAH_ISOLATION": "chroot",
            "TMPDIR": str(self.folder),
        }
        if self._authorities.exists():
            environment["CA_FILE"] = str(self._authorities)  # of `make images`
        return environment

    def _run(self, *command: str) -> str:
        with self.begin(*command) as process:
            try:
                printed, errors = process.communicate(timeout=_BUILD_SECONDS)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            raise BuildFailedError(f"{' '.join(command[:3])}\n{(printed + errors)[-3000:]}")
        return printed


def reference(target: str, tag: str = TAG) -> str:
    """The image that `build` makes of a target."""
    return f"{REGISTRY}/warmfleet-{target}:{tag}"


def import_image(store: ImageStore, target: str, socket: Path, folder: Path) -> None:
    """Bring an image into the containerd behind `socket`, through a pipe: no second copy is on the disk."""
    pipe = folder / f"{target}.pipe"
    os.mkfifo(pipe)
    command = [*_ctr(socket), "images", "import", str(pipe)]
    with subprocess.Popen(
        bound_command(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as importing:
        try:
            store.export(reference(target), pipe)
            _, errors = importing.communicate(timeout=_BUILD_SECONDS)
        except BaseException:
            importing.kill()
            raise
    pipe.unlink()
    if importing.returncode != 0:
        raise BuildFailedError(errors.decode()[-3000:])


def tag_image(socket: Path, image: str, name: str) -> None:
    """Give an image that was imported a second name."""
    subprocess.run([*_ctr(socket), "images", "tag", image, name], check=True, capture_output=True)


def _ctr(socket: Path) -> list[str]:
    return ["/usr/bin/ctr", "--address", str(socket), "--namespace", "k8s.io"]


@contextmanager
def image_store(folder: Path, *, keep: bool = False) -> Iterator[ImageStore]:
    """A store below `folder`, of which nothing is left afterwards.

    With `keep` it stays, and the next run that keeps takes it again, layers and all. What a killed run left
    behind is removed first: only a run that came to its end marks its store.

    Raises:
        BuildFailedError: another run uses it.
    """
    with _used_alone(folder), _kept_or_removed(folder, keep=keep):
        yield ImageStore(folder)


@contextmanager
def _used_alone(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BuildFailedError(f"another run uses {folder}") from None
        yield


@contextmanager
def _kept_or_removed(folder: Path, *, keep: bool) -> Iterator[None]:
    whole = folder / "whole"
    if keep and whole.exists():
        # State of processes that are gone, and what a build that failed left.
        for other in set(folder.iterdir()) - {folder / "store"}:
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    else:
        _remove(folder)
        folder.mkdir()
    whole.unlink(missing_ok=True)
    try:
        yield
    finally:
        if keep:
            whole.touch()
        else:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Also while the last processes of a killed builder end, which still write."""
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.5)
    shutil.rmtree(folder)


def chart_values(targets: Sequence[str]) -> dict[str, Any]:
    """The chart's values that name the built images."""
    keys = {"operator": "operator", "router": "router", "worker-cpu": "workerCpu"}
    named = {keys[target]: {"repository": f"warmfleet-{target}", "tag": TAG} for target in targets}
    return {"images": {"registry": REGISTRY, "pullPolicy": "Never", **named}}
