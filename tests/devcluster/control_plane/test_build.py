"""Building and finding the control plane's programs, with a stand-in for Go."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from warmfleet_devcluster.control_plane.binaries import (
    CONTROL_PLANE,
    KUBERNETES_VERSION,
    TOOLS,
    GoModule,
    find_binaries,
)
from warmfleet_devcluster.control_plane.build import (
    build_programs,
    find_go,
    go_arguments,
    parse_go_version,
)
from warmfleet_devcluster.errors import BinariesMissingError, BuildFailedError


def test_the_programs_are_kept_under_the_hash_of_the_modules_sums(tmp_path: Path) -> None:
    module = tmp_path / "module"
    module.mkdir()
    (module / "go.mod").write_bytes(b"module x\n")
    (module / "go.sum").write_bytes(b"sums\n")
    expected = hashlib.sha256(b"module x\nsums\n").hexdigest()[:16]
    assert (
        GoModule("controlplane", module, {}).binaries_folder(tmp_path) == tmp_path / "controlplane" / expected
    )


def test_what_is_missing_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(BinariesMissingError, match="kube-apiserver") as caught:
        find_binaries(tmp_path)
    assert "make controlplane" in caught.value.advice


def test_a_wheel_without_the_module_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(BinariesMissingError, match="does not hold the Go module of one, two"):
        find_binaries(tmp_path, GoModule("programs", tmp_path / "nowhere", {"one": "", "two": ""}))


def test_the_module_pins_the_kubernetes_that_the_programs_claim_to_be() -> None:
    module = (CONTROL_PLANE.folder / "go.mod").read_text()
    assert f"k8s.io/kubernetes {KUBERNETES_VERSION}" in module
    for package in TOOLS.values():
        assert f"\t{package}\n" in module


@pytest.mark.parametrize("tool", TOOLS)
def test_every_program_is_stamped_with_its_version(tool: str) -> None:
    arguments = go_arguments(tool, TOOLS[tool], Path("/target"))
    assert arguments[-3:] == ["-o", "/target", TOOLS[tool]]
    flags = arguments[arguments.index("-ldflags") + 1]
    assert ("version.gitVersion=v1.36.3" in flags) == (tool != "etcd")
    assert ("internal/version.version=v4.3.1" in flags) == (tool == "helm")


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.26.8\n", (1, 26)), ("go1.9", (1, 9)), ("devel go1.27-abc", None), ("", None)],
)
def test_a_go_version_is_read(text: str, version: tuple[int, int] | None) -> None:
    assert parse_go_version(text) == version


STAND_IN = """#!{python}
import sys, pathlib
if sys.argv[1] == "env":
    print("{version}")
    sys.exit()
target = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
if "{broken}" in sys.argv[-1] and "{broken}":
    sys.exit("syntax error near line 1")
target.write_text(sys.argv[-1])
"""


@pytest.fixture
def stand_in_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def install(version: str = "go1.26.1", broken: str = "") -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        go = folder / "go"
        go.write_text(STAND_IN.format(python=sys.executable, version=version, broken=broken))
        go.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return install


def test_a_build_reports_each_program_and_a_second_build_reports_nothing(tmp_path: Path, stand_in_go) -> None:
    stand_in_go()
    progress: list[str] = []
    binaries = build_programs(tmp_path, progress.append)
    assert progress[0] == "building etcd (1 of 6)"
    assert progress[-1] == "building helm (6 of 6)"
    assert binaries.missing == []
    assert binaries["kubectl"].read_text() == TOOLS["kubectl"]
    progress.clear()
    build_programs(tmp_path, progress.append)
    assert progress == []


def test_a_failed_build_leaves_nothing_and_quotes_the_compiler(tmp_path: Path, stand_in_go) -> None:
    stand_in_go(broken="kubectl")
    with pytest.raises(BuildFailedError, match="syntax error near line 1"):
        build_programs(tmp_path, lambda _: None)
    assert {path.name for path in (tmp_path / "controlplane").iterdir()} == {"lock"}


def test_an_old_go_without_uv_is_a_clear_error(
    tmp_path: Path, stand_in_go, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_go(version="go1.24.0")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(BuildFailedError, match=r"Go 1\.26 is not on PATH"):
        find_go(tmp_path, lambda _: None)


def test_two_builds_at_once_build_once(tmp_path: Path, stand_in_go) -> None:
    stand_in_go()
    environment = {**os.environ, "WARMFLEET_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "warmfleet_devcluster.control_plane.build"]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    outputs = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert "".join(outputs).count("building etcd") == 1
