"""The Dockerfile and what goes into it, without building anything."""

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from warmfleet_contracts.names import IMAGE_HOME_VARIABLE
from warmfleet_testing.documents.dockerfile import parse_dockerfile, sent_files
from warmfleet_testing.resources.chart_render import REPOSITORY, loaded_chart

FILE = parse_dockerfile((REPOSITORY / "Dockerfile").read_text(encoding="utf-8"))
TARGETS = {
    "operator": "warmfleet_operator",
    "router": "warmfleet_router",
    "worker-cpu": "warmfleet_worker",
    "worker-cuda": "warmfleet_worker",
    "worker-vllm": "warmfleet_worker",
}
SENT = sent_files(REPOSITORY, (REPOSITORY / ".dockerignore").read_text(encoding="utf-8"))
PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)", re.MULTILINE)
DIGEST = "sha256:" + "1f" * 32


def load(name):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "images" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


build, cpu_requirements = load("build"), load("cpu_requirements")


def pins(text):
    """Name, version and hashes of every requirement."""
    blocks = re.split(r"\n(?=[a-z0-9])", text)
    found = {}
    for block in blocks:
        match = PINNED.match(block)
        if match:
            found[match[1]] = (match[2], frozenset(re.findall(r"sha256:[0-9a-f]{64}", block)))
    return found


def requirements(component):
    return (REPOSITORY / "images" / "requirements" / f"{component}.txt").read_text(encoding="utf-8")


def final(target, keyword):
    """The last instruction of a kind that holds for a target."""
    return [item for stage in FILE.lineage(target) for item in stage.of(keyword)][-1]


def test_every_image_of_the_chart_is_a_target():
    images = {
        key for key in loaded_chart().merge_values({})["images"] if key not in ("registry", "pullPolicy")
    }
    assert images == {image.key for image in build.IMAGES}
    assert {image.target for image in build.IMAGES} == set(TARGETS) <= set(FILE.stages)


@pytest.mark.parametrize("stage", FILE.stages.values(), ids=FILE.stages)
def test_every_copied_file_exists_and_reaches_the_builder(stage):
    for instruction in stage.of("COPY"):
        copy = instruction.copy
        if copy.stage is None:
            for source in copy.sources:
                assert (REPOSITORY / source).exists(), source
                assert any(name == source or name.startswith(f"{source}/") for name in SENT), source
        else:
            assert copy.stage in list(FILE.stages)[: list(FILE.stages).index(stage.name)]


def test_the_builder_gets_sources_and_nothing_that_was_made_here():
    assert not [name for name in SENT if name.endswith(".pyc") or name.startswith((".", "tests/", "docs/"))]
    assert not [name for name in SENT if "controlplane" in name]
    packages = {name.split("/")[1] for name in SENT if "/warmfleet_" in name}
    assert set(TARGETS.values()) | {"warmfleet_contracts"} <= packages


def test_bases_are_arguments_without_a_floating_tag():
    assert {stage.base for stage in FILE.stages.values()} <= {"${PYTHON_IMAGE}", *FILE.stages}
    for value in FILE.arguments.values():
        tag = value.rpartition(":")[2]
        assert tag != value
        assert not tag.startswith("latest")


def test_the_base_has_the_python_that_the_project_asks_for():
    version = re.search(r"python:(\d+\.\d+)", FILE.arguments["PYTHON_IMAGE"])[1]
    assert f'python_version = "{version}"' in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")


def test_a_base_with_an_older_python_is_refused_by_its_version():
    command = FILE.stages["tools"].of("RUN")[0].words
    oldest = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    major, minor = oldest["requires-python"].removeprefix(">=").split(".")
    assert command[:2] == ["python", "-c"]
    older = f"import sys; sys.version_info, sys.version = ({major}, {int(minor) - 1}), 'the one before'; "
    for before, refusal in (("", ""), (older, f"Python {major}.{minor} or newer is needed, this one has")):
        done = subprocess.run(
            [sys.executable, "-c", before + command[2]], capture_output=True, text=True, check=False
        )
        assert refusal in done.stderr
        assert bool(done.returncode) == bool(refusal)


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_its_component_as_any_user(target):
    assert final(target, "USER").text == "65532:65532"
    assert final(target, "ENTRYPOINT").json == ["python", "-m", TARGETS[target]]
    assert final(target, "WORKDIR").text == "/"
    environment = {}
    for stage in FILE.lineage(target):
        for item in stage.of("ENV"):
            environment |= item.pairs
    assert environment["PATH"].startswith("/opt/venv/bin:")
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert environment["HOME"] == "/nonexistent"
    assert environment.get(IMAGE_HOME_VARIABLE) == ("/opt/warmfleet" if "worker" in target else None)
    labels = {}
    for stage in FILE.lineage(target):
        for item in stage.of("LABEL"):
            labels |= item.pairs
    assert {"title", "description", "vendor", "licenses"} == {
        key.removeprefix("org.opencontainers.image.") for key in labels
    }


@pytest.mark.parametrize("target", TARGETS)
def test_the_code_is_the_last_layer_so_that_a_change_of_it_rebuilds_nothing_else(target):
    *others, last = [item.copy for stage in FILE.lineage(target) for item in stage.of("COPY")]
    holder = "native-code" if target in {"worker-cpu", "worker-cuda"} else "code"
    assert (last.stage, last.target) == (holder, "/opt/code")
    for copy in others:
        if copy.stage != "baked-model":  # converted by this code
            for stage in FILE.lineage(copy.stage):
                assert all(item.copy.stage is None for item in stage.of("COPY"))
                sources = [source for item in stage.of("COPY") for source in item.copy.sources]
                assert all(source.startswith(("images/", "constraints-")) for source in sources)
    instructions = [item for stage in FILE.lineage(target) for item in stage.instructions]
    after = instructions[
        [item.text for item in instructions].index(f"--from={holder} /opt/code /opt/code") + 1 :
    ]
    assert {item.keyword for item in after} == {"EXPOSE", "ENTRYPOINT"}


def test_after_something_ran_as_root_the_user_is_set_back():
    for stage in FILE.stages.values():
        users = [item.text for item in stage.of("USER")]
        assert not users or users[-1] == "65532:65532"


def test_everything_that_is_installed_is_checked_against_its_hash():
    for stage in FILE.stages.values():
        for item in stage.of("RUN"):
            if "pip install" in item.text and "/dist/" not in item.text:
                assert "--require-hashes" in item.text
            assert "curl" not in item.text
            assert "wget" not in item.text


def test_no_layer_keeps_package_lists():
    for stage in FILE.stages.values():
        for item in stage.of("RUN"):
            if "apt-get install" in item.text:
                assert "--no-install-recommends" in item.text
                assert "rm -rf /var/lib/apt/lists/*" in item.text


@pytest.mark.parametrize("component", ["operator", "router", "worker", "build"])
def test_an_image_gets_the_versions_and_hashes_that_are_tested(component):
    pinned, tested = (
        pins(requirements(component)),
        pins((REPOSITORY / "constraints.txt").read_text(encoding="utf-8")),
    )
    assert pinned
    assert {name: tested.get(name) for name in pinned} == pinned, "run `make constraints`"


def closure(texts):
    """Names of what these requirements need here, computed from the metadata of what is installed."""
    texts = [(text, ("",)) for text in texts]
    seen = set()
    while texts:
        text, extras = texts.pop()
        requirement = Requirement(text)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras
        ):
            key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
            if key not in seen:
                seen.add(key)
                texts += [(below, (*requirement.extras, "")) for below in requires(requirement.name) or ()]
    return {name for name, _ in seen}


def installed_here(text):
    """Names that a file of requirements installs here: pins are for every platform."""
    return {
        canonicalize_name(Requirement(line.rstrip(" \\")).name)
        for line in text.splitlines()
        if PINNED.match(line)
        and ((marker := Requirement(line.rstrip(" \\")).marker) is None or marker.evaluate())
    }


def needed(component):
    """What pyproject.toml has for a component."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["dependencies"] + project["optional-dependencies"][component]


@pytest.mark.parametrize("component", ["operator", "router", "worker"])
def test_an_image_gets_all_that_its_component_needs_and_nothing_else(component):
    pinned = installed_here(requirements(component))

    assert closure(needed(component)) == pinned, "run `make constraints`"


def test_a_worker_without_torch_gets_all_that_the_rest_of_it_needs_and_nothing_else():
    others = [text for text in needed("worker") if Requirement(text).name != "torch"]
    pinned = installed_here(for_cpus(""))

    assert closure(others) == pinned, "run `make constraints`"
    assert {"numpy", "jinja2", "filelock", "ml-dtypes"} <= pinned
    assert {"torch", "triton", "sympy", "networkx", "mpmath"}.isdisjoint(pinned)


def for_cpus(argument, machine="x86_64"):
    return cpu_requirements.cpu_requirements(requirements("worker"), argument, machine)


def test_only_workers_carry_torch_and_only_the_operator_kopf():
    for component, has in (("operator", "kopf"), ("worker", "torch")):
        holders = {name for name in ("operator", "router", "worker") if has in pins(requirements(name))}
        assert holders == {component}


@pytest.mark.parametrize(
    ("machine", "argument", "has_torch"),
    [
        ("x86_64", "", False),
        ("x86_64", "pinned", True),
        ("x86_64", "none", False),
        ("aarch64", "", True),
        ("aarch64", "pinned", True),
        ("aarch64", "none", False),
    ],
)
def test_the_image_for_cpus_has_the_pinned_torch_where_it_is_asked_for_or_nothing_else_computes(
    machine, argument, has_torch
):
    text = for_cpus(argument, machine)

    assert (text == requirements("worker")) == has_torch
    assert ("torch" in pins(text)) == has_torch
    assert pins(text).items() <= pins(requirements("worker")).items()


def test_a_cpu_wheel_takes_the_place_of_torch_and_of_what_only_cuda_needs():
    wheel = f"https://wheels.example.com/torch-2.15.0-cp311-linux_x86_64.whl#{DIGEST.replace(':', '=')}"
    text = for_cpus(wheel)
    assert text.endswith(f"torch @ {wheel}\n")
    dropped = set(pins(requirements("worker"))) - set(pins(text))
    assert {"torch", "triton"} < dropped
    assert all(name in {"torch", "triton"} or name.startswith(("nvidia-", "cuda-")) for name in dropped)


@pytest.mark.parametrize(
    "argument", ["torch", "https://wheels.example.com/torch.whl", "https://x/torch.whl#sha256=12"]
)
def test_another_torch_is_refused_with_what_may_be_asked_for(argument):
    with pytest.raises(ValueError, match=r"TORCH_CPU_WHEEL: expected nothing, pinned, none or https://.*got"):
        for_cpus(argument)


def test_requirements_that_do_not_note_what_needs_them_are_refused():
    bare = re.sub(r"\n    # .*", "", requirements("worker"))
    with pytest.raises(
        ValueError, match=r"no note names what needs annotated-types, .*run `make constraints`"
    ):
        cpu_requirements.cpu_requirements(bare, "none", "x86_64")


def test_the_server_beside_vllm_is_built_without_torch_on_every_machine():
    (made,) = [
        item.text for item in FILE.stages["worker-vllm-venv"].of("RUN") if "cpu_requirements" in item.text
    ]
    assert "images/requirements/worker.txt none >" in made


def test_the_image_with_vllm_installs_what_make_vllm_does_and_finds_it():
    (installed,) = [
        item.text for item in FILE.stages["vllm-venv"].of("RUN") if "constraints-vllm.txt" in item.text
    ]
    assert "--no-deps --require-hashes -r constraints-vllm.txt" in installed
    environment = {}
    for item in FILE.stages["worker-vllm"].of("ENV"):
        environment |= item.pairs
    assert environment["WARMFLEET_VLLM_PYTHON"] == "/opt/vllm/bin/python"
    copies = {item.copy.target: item.copy.stage for item in FILE.stages["worker-vllm"].of("COPY")}
    assert copies == {"/opt/venv": "worker-vllm-venv", "/opt/vllm": "vllm-venv", "/opt/code": "code"}
    assert all(value.startswith("/tmp/") for name, value in environment.items() if "CACHE" in name)


# Engines record their arguments and answer like the real ones.
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$1 $2" in
  "info --format") echo 1.0 ;;
  "images --format") echo "235 MB" ;;
  "image inspect") echo '["registry.example.com/x/warmfleet-'"$IMAGE"'@{digest}"]' ;;
  "push --digestfile") printf %s {digest} > "$3" ;;
esac
""".replace("{digest}", DIGEST)


@pytest.fixture
def make_images(tmp_path):
    """Runs the builder in a copy of the tree, with engines of the given names on its path."""

    def run(*arguments, engines=(), **variables):
        tree, programs = tmp_path / "tree", tmp_path / "bin"
        (tree / "images").mkdir(parents=True, exist_ok=True)
        programs.mkdir(exist_ok=True)
        for name in ("images/build.py", "pyproject.toml"):
            (tree / name).write_bytes((REPOSITORY / name).read_bytes())
        for name in engines:
            (programs / name).write_text(STAND_IN, encoding="utf-8")
            (programs / name).chmod(0o755)
        for name in ("sh", "basename"):
            (programs / name).unlink(missing_ok=True)
            (programs / name).symlink_to(Path("/usr/bin") / name)
        calls = tmp_path / "calls"
        calls.write_text("", encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "images/build.py", *arguments],
            cwd=tree,
            env={
                "PATH": str(programs),
                "CALLS": str(calls),
                "LANG": "C.UTF-8",
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        values = tree / "images.values.yaml"
        return done, calls.read_text(encoding="utf-8").splitlines(), values

    return run


def test_without_an_engine_the_error_names_the_engines_that_were_tried(make_images):
    done, _, values = make_images("--registry", "registry.example.com/x")
    assert done.returncode == 2
    for engine in build.ENGINES:
        assert f"{engine}: not installed" in done.stderr
    assert "warmfleet devcluster up" in done.stderr
    assert not values.exists()


def test_without_a_registry_the_error_gives_the_command(make_images):
    done, _, _ = make_images(engines=["docker"])
    assert done.returncode == 2
    assert "make images REGISTRY=registry.example.com/warmfleet PUSH=1" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("--registry", "a b"), ("--registry", "r", "--push", "--load", "kind")]
)
def test_what_cannot_be_meant_is_refused(make_images, arguments):
    done, calls, _ = make_images(*arguments, engines=["docker"])
    assert done.returncode == 2
    assert calls == []


def test_the_image_with_vllm_is_built_when_it_is_asked_for(make_images):
    for arguments, targets in (
        ((), ["operator", "router", "worker-cpu", "worker-cuda"]),
        (("--target", "worker-vllm"), ["worker-vllm"]),
    ):
        done, calls, path = make_images("--registry", "r.example.com/x", *arguments, engines=["docker"])
        assert done.returncode == 0, done.stderr
        assert [call.split()[3] for call in calls if call.startswith("docker build")] == targets
        named = yaml.safe_load(path.read_text(encoding="utf-8"))["images"]["workerVllm"]
        assert named["repository"] == "warmfleet-worker-vllm"


@pytest.mark.parametrize("engine", build.ENGINES)
def test_pushed_images_are_written_down_by_digest_for_the_chart(make_images, engine):
    arguments = (
        "--registry",
        "registry.example.com/x",
        "--push",
        "--target",
        "router",
        "--catalog-model",
        "m",
    )
    done, calls, path = make_images(*arguments, engines=[engine], IMAGE="router")
    assert done.returncode == 0, done.stderr
    (built,) = [call for call in calls if call.startswith(f"{engine} build")]
    version = build.package_version()
    assert f"--target router --tag registry.example.com/x/warmfleet-router:{version} " in built
    assert f"--label org.opencontainers.image.version={version} " in built
    assert "--label org.opencontainers.image.revision=" in built
    assert re.search(r"warmfleet-router +235 MB", done.stdout)
    assert "--build-arg CATALOG_MODEL=m " in built
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert values["images"]["router"]["digest"] == DIGEST
    assert values["images"]["operator"] == {"repository": "warmfleet-operator", "tag": version, "digest": ""}
    loaded_chart().validate_schema(values)
    rendered = loaded_chart().render(values, name="w", namespace="n")
    assert any(f"registry.example.com/x/warmfleet-router@{DIGEST}" in text for text in rendered.values())


def test_a_build_of_one_image_leaves_the_digests_of_the_others(make_images):
    def push(registry, target):
        arguments = ("--registry", registry, "--push", "--target", target)
        done, _, path = make_images(*arguments, engines=["podman"])
        assert done.returncode == 0, done.stderr
        return yaml.safe_load(path.read_text(encoding="utf-8"))["images"]

    push("registry.example.com/x", "router")
    both = push("registry.example.com/x", "worker-vllm")
    assert both["router"]["digest"] == both["workerVllm"]["digest"] == DIGEST
    assert both["operator"]["digest"] == ""

    elsewhere = push("registry.example.com/y", "worker-vllm")
    assert elsewhere["workerVllm"]["digest"] == DIGEST
    assert elsewhere["router"]["digest"] == ""


@pytest.mark.parametrize("named", ["", "docker.io/", "index.docker.io/"])
def test_docker_may_leave_its_own_registry_out_of_a_name(monkeypatch, named):
    plan = build.Plan("docker.io/x", "t", "docker", ("router",), ())
    monkeypatch.setattr(build, "_output", lambda _: json.dumps([f"{named}x/warmfleet-router@{DIGEST}"]))
    assert build._digest(plan, plan.images[0], Path("unused")) == DIGEST


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_images_for_kind_are_loaded_and_written_down_by_tag(make_images, engine):
    done, calls, path = make_images(
        "--registry", "local/x", "--load", "kind", "--tag", "t1", engines=[engine, "kind"]
    )
    assert done.returncode == 0, done.stderr
    assert len([call for call in calls if call.startswith(f"{engine} build")]) == 4
    assert len([call for call in calls if call.startswith("kind load")]) == 4
    images = yaml.safe_load(path.read_text(encoding="utf-8"))["images"]
    assert {image["tag"] for image in images.values() if isinstance(image, dict)} == {"t1"}
    assert {image["digest"] for image in images.values() if isinstance(image, dict)} == {""}


def test_an_engine_that_fails_ends_the_build_with_its_name(make_images, tmp_path):
    done, _, values = make_images("--registry", "r.example.com/x", "--load", "kind", engines=["docker"])
    assert done.returncode == 1
    assert "kind" in done.stderr
    assert not values.exists()


def test_make_passes_its_variables_on():
    shown = subprocess.run(
        ["make", "--dry-run", "images", "REGISTRY=r.example.com/x", "PUSH=1", "TAG=t", "BUILD_ARGS=A=1 B=2"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    words = " ".join(shown.replace("\\\n", " ").split())
    assert '--registry "r.example.com/x" --catalog-model "smollm2-135m-instruct" --push' in words
    assert '--tag "t"' in words
    assert '--build-arg "A=1" --build-arg "B=2"' in words


def test_the_ignore_rules_are_read_as_a_builder_reads_them(tmp_path):
    for name in ("a/x.py", "a/x.pyc", "a/b/__pycache__/y", "c/z", "d"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(name), encoding="utf-8")
    assert sent_files(tmp_path, "*\n!a\n!d\n**/__pycache__\n**/*.pyc\n") == {"a/x.py", "d"}
