"""What `warmfleet devcluster up` does for the native step of its workers' image."""

import os
import stat
from pathlib import Path

import pytest

from warmfleet_cli.devcluster import compile_native_step
from warmfleet_testing.processes.compiled_step import keep_compiled_step

ANOTHER_USER = 65534


def fail_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'error: no space left' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))


def test_what_is_compiled_is_not_compiled_again_and_pods_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    keep_compiled_step(home)
    fail_to_compile(tmp_path, monkeypatch)
    owner = os.geteuid() or ANOTHER_USER
    os.chown(home, owner, -1)
    reported: list[str] = []

    compile_native_step(home, reported.append)

    assert len(reported) == 1
    kept = [home / "native", *(home / "native").iterdir()]
    assert [path.stat().st_uid for path in kept] == [owner] * 2
    assert [stat.S_IMODE(path.stat().st_mode) for path in kept] == [0o755] * 2


def test_a_step_that_cannot_be_compiled_is_reported_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_compile(tmp_path, monkeypatch)
    home = tmp_path / "home"
    home.mkdir()
    owner = os.geteuid() or ANOTHER_USER
    os.chown(home, owner, -1)
    reported: list[str] = []

    compile_native_step(home, reported.append)

    assert reported[-1].startswith("workers start later, or compute by PyTorch: ")
    assert reported[-1].endswith("error: no space left")
    assert (home / "native").stat().st_uid == owner  # who can compile there later


def test_a_folder_out_of_the_home_is_not_given_to_its_owner(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    keep_compiled_step(other)
    (home / "native").symlink_to(other / "native")
    os.chown(home, os.geteuid() or ANOTHER_USER, -1)
    reported: list[str] = []

    compile_native_step(home, reported.append)

    assert "is a link" in reported[-1]
    assert (other / "native").stat().st_uid == os.geteuid()
