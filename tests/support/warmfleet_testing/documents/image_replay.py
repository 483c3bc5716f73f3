"""Images without a container engine: the Dockerfile's steps on layers over this machine's own root.

Every stage has an overlay of its own; COPY and RUN run inside, by chroot in a mount namespace that ends with
the step. The base image is this machine, with the Python that runs the tests. What an image then is can be
started as any user, its root read-only. Needs root; leaves nothing but files below `scratch`.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from warmfleet_testing.documents.dockerfile import Dockerfile, Instruction, sent_files, substituted

BASE_PYTHON: Final = Path(sys.base_prefix) / "bin"
STEP_SECONDS: Final = 240


class ReplayError(AssertionError):
    """A step failed; the text is its output."""


@dataclass(slots=True)
class Layers:
    """A stage as far as it has been built."""

    upper: Path
    """What differs from this machine's root: the steps of this stage and of those below."""
    environment: dict[str, str]
    arguments: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "0"
    entrypoint: tuple[str, ...] = ()


class ImageReplay:
    """Builds stages on demand, each once."""

    def __init__(
        self,
        dockerfile: Dockerfile,
        context: Path,
        scratch: Path,
        *,
        build_environment: Callable[[str], Mapping[str, str]],
        skipped: Callable[[str], bool],
        readable: Sequence[Path] = (),
        arguments: Mapping[str, str] | None = None,
    ) -> None:
        """`build_environment` is laid over that of a RUN step; `skipped` names the commands not to run.

        `readable` are folders of this machine that any user of an image may enter, as the base's Python is.
        """
        self._dockerfile = dockerfile
        self._context = context
        self._ignore = (context / ".dockerignore").read_text(encoding="utf-8")
        self._scratch = scratch
        self._build_environment = build_environment
        self._skipped = skipped
        self._readable = readable
        self._arguments = dict(arguments or {})
        self._built: dict[str, Layers] = {}
        self.commands_run: list[str] = []

    def stage(self, name: str) -> Layers:
        """The stage, built.

        Raises:
            ReplayError: a step failed.
        """
        if name not in self._built:
            self._built[name] = self._build(name)
        return self._built[name]

    def command(
        self, name: str, arguments: list[str], *, uid: int, environment: Mapping[str, str] | None = None
    ) -> list[str]:
        """A command line that runs `arguments` in the image: root read-only, /tmp writable, user `uid`."""
        image = self.stage(name)
        mount = self._folder(f"{name}-view")
        variables = {**image.environment, **(environment or {})}
        work = self._folder(f"{name}-view-work")
        hidden = [folder for folder in self._readable if folder.is_relative_to("/tmp")]
        shown = [f"mkdir -p {mount}{folder} && mount --bind {folder} {mount}{folder}" for folder in hidden]
        script = (
            *_overlay(image.upper, work, mount),
            f"mount -o remount,ro {mount}",
            f"mount -t tmpfs -o mode=1777 tmp {mount}/tmp",
            *shown,
            f"exec chroot --userspec={uid}:0 --groups= {mount} setpriv --no-new-privs "
            + _with_environment(variables, arguments),
        )
        return [*_NAMESPACE, "\n".join(script)]

    def _build(self, name: str) -> Layers:
        stage = self._dockerfile.stages[name]
        if stage.base in self._dockerfile.stages:
            below = self.stage(stage.base)
            # A copy, not one layer more: the kernel refuses a lower folder inside another, and / holds all.
            subprocess.run(["cp", "-a", below.upper, self._scratch / name], check=True, timeout=STEP_SECONDS)
            layers = Layers(
                upper=self._folder(name),
                environment=dict(below.environment),
                arguments=dict(below.arguments),
                workdir=below.workdir,
                user=below.user,
            )
        else:
            layers = Layers(self._folder(name), {"PATH": f"{BASE_PYTHON}:/usr/bin:/bin:/usr/sbin:/sbin"})
            self._open_the_way(layers)
        for instruction in stage.instructions:
            self._apply(layers, instruction)
        return layers

    def _apply(self, layers: Layers, instruction: Instruction) -> None:
        match instruction.keyword:
            case "ARG":
                for key, value in instruction.pairs.items():
                    layers.arguments[key] = self._arguments.get(key, value)
            case "ENV":
                layers.environment |= instruction.pairs
            case "WORKDIR":
                layers.workdir = instruction.text
                self._in(layers, f"mkdir -p {instruction.text}", "/")
            case "USER":
                layers.user = instruction.text
            case "ENTRYPOINT":
                layers.entrypoint = tuple(instruction.json)
            case "COPY":
                self._copy(layers, instruction)
            case "RUN":
                if not self._skipped(instruction.text):
                    self.commands_run.append(instruction.text)
                    self._in(layers, instruction.text, layers.workdir)

    def _copy(self, layers: Layers, instruction: Instruction) -> None:
        copy = instruction.copy
        into = os.path.join(layers.workdir, copy.target)  # noqa: PTH118 - a path inside the image
        if copy.stage is not None:
            (source,) = copy.sources
            origin = self.stage(copy.stage).upper / source.lstrip("/")
            goal = layers.upper / into.lstrip("/")
            if self._is_copied_once(copy.stage, source):
                goal.parent.mkdir(parents=True, exist_ok=True)
                origin.rename(goal)  # tens of thousands of files in a worker
            else:
                goal.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-a", f"{origin}/.", goal], check=True, timeout=STEP_SECONDS)
            return
        sent = sent_files(self._context, self._ignore)
        for source in copy.sources:
            files = [name for name in sent if name == source or name.startswith(f"{source}/")]
            if not files:
                raise ReplayError(f"COPY {source}: nothing of it is sent to the builder")
            for name in files:
                inside = name.removeprefix(source).lstrip("/") or (
                    Path(name).name if into.endswith("/") else ""
                )
                goal = layers.upper / into.lstrip("/") / inside
                goal.parent.mkdir(parents=True, exist_ok=True)
                goal.write_bytes((self._context / name).read_bytes())

    def _is_copied_once(self, stage: str, source: str) -> bool:
        copies = [item.copy for other in self._dockerfile.stages.values() for item in other.of("COPY")]
        times = sum(copy.stage == stage and source in copy.sources for copy in copies)
        return times == 1 and all(other.base != stage for other in self._dockerfile.stages.values())

    def _in(self, layers: Layers, command: str, workdir: str) -> None:
        mount, work = self._folder("mount"), self._folder(f"{layers.upper.name}-work")
        # Empty arguments are not set at all, as with a builder; uv takes an empty index for a wrong one.
        variables = {
            **layers.environment,
            **{key: value for key, value in layers.arguments.items() if value},
            "HOME": "/root",
            **self._build_environment(command),
        }
        inside = f"cd {workdir} && {self._expanded(command, layers)}"
        script = (
            *_overlay(layers.upper, work, mount),
            f"exec chroot {mount} {_with_environment(variables, ['sh', '-ec', inside])}",
        )
        done = subprocess.run(
            [*_NAMESPACE, "\n".join(script)],
            capture_output=True,
            text=True,
            timeout=STEP_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise ReplayError(f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")

    def _expanded(self, command: str, layers: Layers) -> str:
        return substituted(command, layers.arguments) if "${" in command else command

    def _open_the_way(self, layers: Layers) -> None:
        """Let any user through to what a base image has where all can read it."""
        roots = (BASE_PYTHON, *self._readable)
        folders = {folder for root in roots for folder in (root, *root.parents)} - {Path("/")}
        self._in(layers, f"chmod a+rx {shlex.join(map(str, sorted(folders)))}", "/")
        # As the base image has it; Debian's own Python has the versioned names alone.
        self._in(layers, f"command -v python >/dev/null || ln -s python3 {BASE_PYTHON}/python", "/")

    def _folder(self, name: str) -> Path:
        path = self._scratch / name
        path.mkdir(parents=True, exist_ok=True)
        return path


_NAMESPACE: Final = ("unshare", "--mount", "--propagation", "private", "sh", "-ec")


def _overlay(upper: Path, work: Path, mount: Path) -> tuple[str, ...]:
    return (
        f"mount -t overlay overlay -o lowerdir=/,upperdir={upper},workdir={work} {mount}",
        f"mount --rbind /proc {mount}/proc",
        f"mount --rbind /dev {mount}/dev",
    )


def _with_environment(variables: Mapping[str, str], command: Sequence[str]) -> str:
    return shlex.join(["env", "-i", *(f"{key}={value}" for key, value in variables.items()), *command])
