"""Builds warmfleet's images with the installed container engine, and writes their references for Helm.

`python images/build.py --registry registry.example.com/warmfleet --push` is what `make images` runs. Standard
library only, so that it needs neither a virtual environment nor a cluster.

Exit codes: 0 done, 1 an engine failed, 2 usage, or no engine works.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
VALUES: Final = REPOSITORY / "images.values.yaml"
ENGINES: Final = ("docker", "podman", "buildah")
# Commands that succeed only if the engine can build: docker is often installed without its daemon.
PROBES: Final[Mapping[str, tuple[str, ...]]] = {
    "docker": ("docker", "info", "--format", "{{.ServerVersion}}"),
    "podman": ("podman", "info", "--format", "{{.Version.Version}}"),
    "buildah": ("buildah", "info", "--format", "{{.host.kernel}}"),
}
PROBE_SECONDS: Final = 30
MAX_AUTHORITIES_BYTES: Final = 100_000
"""Linux takes 131,072 bytes for one argument of a command."""
_REGISTRY: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9][a-z0-9._-]*)*")
_NAMED: Final = re.compile(r"^  (\w+):\n    repository: \S+\n    tag: (.+)\n    digest: (.+)$", re.MULTILINE)
"""An image in the values file: key, tag and digest, as they stand there."""
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class BuildError(Exception):
    """The images cannot be built; the text is for users."""


@dataclass(frozen=True, slots=True)
class Image:
    """One target of the Dockerfile."""

    target: str
    key: str
    """Under `images` in the chart's values."""
    on_request: bool = False
    """Built only if it is named: it takes ten gigabytes."""

    @property
    def repository(self) -> str:
        return f"warmfleet-{self.target}"


IMAGES: Final = (
    Image("operator", "operator"),
    Image("router", "router"),
    Image("worker-cpu", "workerCpu"),
    Image("worker-cuda", "workerCuda"),
    Image("worker-vllm", "workerVllm", on_request=True),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The arguments of one build."""

    registry: str
    tag: str
    engine: str
    targets: tuple[str, ...]
    build_args: tuple[tuple[str, str], ...]
    labels: tuple[tuple[str, str], ...] = ()
    """What differs from commit to commit; a LABEL instruction would have all later layers built anew."""
    push: bool = False
    load: str = ""
    """`kind` brings the images into a kind cluster instead of a registry."""
    kind_cluster: str = "kind"
    values: Path = VALUES

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple(image for image in IMAGES if image.target in self.targets)

    def reference(self, image: Image) -> str:
        return f"{self.registry}/{image.repository}:{self.tag}"


def build_command(plan: Plan, image: Image) -> list[str]:
    """The engine's command line that builds one image."""
    command = [plan.engine, "build", "--target", image.target, "--tag", plan.reference(image)]
    if plan.engine == "buildah":
        command.append("--layers")  # the others keep layers for the next build by default
    for name, value in plan.build_args:
        command += ["--build-arg", f"{name}={value}"]
    for name, value in plan.labels:
        command += ["--label", f"org.opencontainers.image.{name}={value}"]
    return [*command, "--file", "Dockerfile", "."]


def push_command(plan: Plan, image: Image, digest_file: Path) -> list[str]:
    """The engine's command line that pushes one image; podman and buildah write its digest to a file."""
    if plan.engine == "docker":
        return ["docker", "push", plan.reference(image)]
    return [plan.engine, "push", "--digestfile", str(digest_file), plan.reference(image)]


def size_command(plan: Plan, image: Image) -> list[str]:
    """The engine's command line that prints the size of one image, in the unit that it chooses."""
    return [plan.engine, "images", "--format", "{{.Size}}", plan.reference(image)]


def values_of(plan: Plan, digests: Mapping[str, str], before: str = "") -> str:
    """images.values.yaml: every image of the chart, by digest where one is known, else by tag.

    Images that `plan` does not build are named as in `before`, an older file for the same registry.
    """
    registry = json.dumps(plan.registry)
    is_same = f"\n  registry: {registry}\n" in before
    named = {key: names for key, *names in _NAMED.findall(before)} if is_same else {}
    lines = [
        "# Written by `make images`: helm install warmfleet charts/warmfleet -f images.values.yaml",
        "images:",
        f"  registry: {registry}",
    ]
    for image in IMAGES:
        tag, digest = json.dumps(plan.tag), json.dumps(digests.get(image.target, ""))
        if image not in plan.images:
            tag, digest = named.get(image.key, (tag, digest))
        lines += [
            f"  {image.key}:",
            f"    repository: {image.repository}",
            f"    tag: {tag}",
            f"    digest: {digest}",
        ]
    return "\n".join(lines) + "\n"


def find_engine(wanted: str = "") -> str:
    """The first engine that answers.

    Raises:
        BuildError: none does; it quotes the answer of each.
    """
    answers = []
    for engine in (wanted,) if wanted else ENGINES:
        if shutil.which(engine) is None:
            answers.append(f"  {engine}: not installed")
            continue
        try:
            probe = subprocess.run(
                PROBES[engine], capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            answers.append(f"  {engine}: no answer in {PROBE_SECONDS} s")
            continue
        if probe.returncode == 0 and probe.stdout.strip():
            return engine
        answers.append(f"  {engine}: {(probe.stderr.strip() or 'does not answer').splitlines()[-1]}")
    raise BuildError(
        "building images needs docker, podman or buildah, and none works here:\n"
        + "\n".join(answers)
        + "\nWithout images, `warmfleet devcluster up` runs the chart on this machine."
    )


def package_version() -> str:
    """The version in pyproject.toml, which is the chart's appVersion."""
    text = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
    if match is None:
        raise BuildError("pyproject.toml names no version")
    return match[1]


def revision() -> str:
    """The commit that is built; `unknown` outside a git checkout."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    command = (git, "rev-parse", "HEAD")
    head = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return head.stdout.strip() or "unknown"


def build(plan: Plan) -> None:
    """Build, push or load the images, write the values file.

    Raises:
        BuildError: a command failed.
    """
    digests: dict[str, str] = {}
    sizes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for image in plan.images:
            _run(build_command(plan, image))
            sizes[image.repository] = _output(size_command(plan, image)).strip()
            if plan.push:
                digest_file = Path(folder) / image.target
                _run(push_command(plan, image, digest_file))
                digests[image.target] = _digest(plan, image, digest_file)
            elif plan.load:
                _load(plan, image, Path(folder))
    before = plan.values.read_text(encoding="utf-8") if plan.values.exists() else ""
    plan.values.write_text(values_of(plan, digests, before), encoding="utf-8")
    print()
    for repository, size in sizes.items():
        print(f"  {repository:24} {size}")
    print(f"\n{plan.values.name} has their names. Next:\n")
    print(f"  helm install warmfleet charts/warmfleet -f {plan.values.name}\n")


def _digest(plan: Plan, image: Image, digest_file: Path) -> str:
    if plan.engine == "docker":
        name = _without_hub(plan.reference(image).rpartition(":")[0])
        inspect = ("docker", "image", "inspect", "--format", "{{json .RepoDigests}}", plan.reference(image))
        known = json.loads(_output(inspect) or "[]") or []
        named = (entry.partition("@") for entry in known)
        text = next((digest for of, _, digest in named if _without_hub(of) == name), "")
    else:
        text = digest_file.read_text(encoding="utf-8").strip()
    if _DIGEST.fullmatch(text) is None:
        raise BuildError(f"{plan.engine} named no digest of {plan.reference(image)}")
    return text


def _without_hub(name: str) -> str:
    """An image's name without the registry that docker takes for granted, and leaves out itself."""
    return name.removeprefix("index.").removeprefix("docker.io/")


def _load(plan: Plan, image: Image, folder: Path) -> None:
    reference = plan.reference(image)
    if plan.engine == "docker":
        _run(["kind", "load", "docker-image", "--name", plan.kind_cluster, reference])
        return
    archive = folder / f"{image.target}.tar"
    _run([plan.engine, "push", reference, f"docker-archive:{archive}:{reference}"])
    _run(["kind", "load", "image-archive", "--name", plan.kind_cluster, str(archive)])
    archive.unlink(missing_ok=True)


def _run(command: Sequence[str]) -> None:
    print("$", *(part.partition("\n")[0] for part in command), flush=True)  # of certificates, the first line
    try:
        done = subprocess.run(command, cwd=REPOSITORY, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command[:2])} ended with code {done.returncode}")


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command[:3])}: {done.stderr.strip()}")
    return done.stdout


def parse_plan(arguments: Sequence[str]) -> Plan:
    """The plan that the flags describe, with the engine that runs it.

    Raises:
        BuildError: a flag is wrong, or no engine works.
    """
    given = _parser().parse_args(arguments)
    if not given.registry:
        raise BuildError("REGISTRY is empty; try: make images REGISTRY=registry.example.com/warmfleet PUSH=1")
    if _REGISTRY.fullmatch(given.registry) is None:
        raise BuildError(f"REGISTRY: expected host[:port]/path, got {given.registry!r}")
    if given.push and given.load:
        raise BuildError("PUSH and LOAD exclude each other: a registry or a cluster on this machine")
    for argument in given.build_arg:
        if "=" not in argument:
            raise BuildError(f"BUILD_ARGS: expected NAME=VALUE, got {argument!r}")
    authorities = _authorities(given.ca_file)
    engine = find_engine(given.engine)
    pairs = [tuple(argument.split("=", 1)) for argument in given.build_arg]
    return Plan(
        registry=given.registry,
        tag=given.tag or package_version(),
        engine=engine,
        targets=tuple(given.target or [image.target for image in IMAGES if not image.on_request]),
        build_args=(
            ("CATALOG_MODEL", given.catalog_model),
            *authorities,
            *((name, value) for name, value in pairs),
        ),
        labels=(("version", package_version()), ("revision", revision())),
        push=given.push,
        load=given.load,
        kind_cluster=given.kind_cluster,
        values=given.values,
    )


def _authorities(files: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The build argument that holds the certificates of `files`; none without files."""
    texts = []
    for name in files:
        try:
            text = Path(name).read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise BuildError(f"CA_FILE: {name} cannot be read: {error}") from error
        if "-----BEGIN CERTIFICATE-----" not in text:
            raise BuildError(f"CA_FILE: {name} holds no certificate in PEM")
        texts.append(text)
    joined = "\n".join(texts)
    if len(joined) > MAX_AUTHORITIES_BYTES:
        raise BuildError(
            f"CA_FILE: {len(joined)} bytes, at most {MAX_AUTHORITIES_BYTES} fit into an argument; "
            "name the file of your own authority only, the public ones are in the base image"
        )
    return (("EXTRA_CA_PEM", joined),) if joined else ()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python images/build.py",
        description="Build warmfleet's images and write images.values.yaml.",
        epilog="Example: make images REGISTRY=registry.example.com/warmfleet PUSH=1",
    )
    add = parser.add_argument
    add("--registry", default="", help="registry and path before every repository")
    add("--tag", default="", help="tag of all images; default: the version")
    add("--engine", choices=ENGINES, default="", help="default: the first that answers")
    targets = [image.target for image in IMAGES]
    add(
        "--target",
        action="append",
        choices=targets,
        default=[],
        help="only this one (repeatable); default: all but worker-vllm",
    )
    add("--catalog-model", default="", help="baked into worker-cpu; empty: none")
    add("--build-arg", action="append", default=[], metavar="NAME=VALUE", help="passed on (repeatable)")
    add(
        "--ca-file", action="append", default=[], metavar="PEM", help="trusted beside the base's (repeatable)"
    )
    add("--push", action="store_true", help="push, and write digests")
    add("--load", choices=("", "kind"), default="", help="load into a cluster on this machine instead")
    add("--values", type=Path, default=VALUES, help="the file to write; default: images.values.yaml")
    add("--kind-cluster", default="kind", help="name of the kind cluster")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    try:
        plan = parse_plan(arguments)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        build(plan)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
