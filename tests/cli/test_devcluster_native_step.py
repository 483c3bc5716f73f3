"""What `warmfleet devcluster up` does for the native step of its workers' image."""

import os
from pathlib import Path

import pytest

from warmfleet_cli.devcluster import compile_native_step
from warmfleet_testing.processes.compiled_step import keep_compiled_step

ANOTHER_USER = 65534


@pytest.fixture(autouse=True)
def failing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'error: no space left' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))


def test_what_is_compiled_is_not_compiled_again_and_belongs_to_the_owner_of_the_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    keep_compiled_step(home)
    owner = os.geteuid() or ANOTHER_USER
    os.chown(home, owner, -1)
    reported: list[str] = []

    compile_native_step(home, reported.append)

    assert len(reported) == 1
    kept = [home / "native", *(home / "native").iterdir()]
    assert [path.stat().st_uid for path in kept] == [owner] * 2


def test_a_step_that_cannot_be_compiled_is_reported_and_is_no_failure(tmp_path: Path) -> None:
    reported: list[str] = []

    compile_native_step(tmp_path, reported.append)

    assert reported[-1].startswith("workers start later, or compute by PyTorch: ")
    assert reported[-1].endswith("error: no space left")
