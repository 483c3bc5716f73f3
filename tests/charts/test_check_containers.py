"""What `make check-containers` installs, and that `make check` does not run it."""

import shutil
import subprocess

import pytest

from warmfleet_testing.containers.builder import BuildFailedError, image_store
from warmfleet_testing.containers.packages import NEEDED, is_present, missing_packages
from warmfleet_testing.resources.chart_render import REPOSITORY


def shown(*arguments):
    return subprocess.run(
        ["make", "--dry-run", *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_only_missing_packages_are_installed():
    assert missing_packages(NEEDED.values()) == []
    assert missing_packages([]) == list(NEEDED)
    assert missing_packages(file for name, file in NEEDED.items() if name != "runc") == ["runc"]


def test_a_program_counts_wherever_it_is(tmp_path, monkeypatch):
    program = tmp_path / "of-another-maker"
    program.touch(mode=0o755)
    assert not is_present(program.name)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert is_present(program.name)
    assert is_present(str(program))
    assert not is_present(str(tmp_path / "missing"))


def test_no_test_of_containers_is_part_of_check():
    for target in ("test", "collect"):
        (command,) = [line for line in shown(target).splitlines() if "bin/pytest" in line]
        assert "not containers" in command


def test_the_workers_image_can_be_left_out():
    assert "tests/containers/test_operator_and_router.py" in shown(
        "check-containers", "ONLY=operator-and-router"
    )
    assert "test_operator_and_router" not in shown("check-containers")


def test_images_stay_for_the_next_run_only_where_that_is_asked_for():
    assert "KEEP=1 .venv/bin/pytest" in shown("check-containers", "KEEP=1")
    assert "KEEP= .venv/bin/pytest" in shown("check-containers")


def test_a_store_that_is_kept_is_taken_again_only_if_its_run_came_to_an_end(tmp_path):
    folder = tmp_path / "store"
    with image_store(folder, keep=True) as store:
        (store.folder / "store").mkdir()
        (store.folder / "left").touch()
    with image_store(folder, keep=True) as store:
        assert (store.folder / "store").exists()
        assert not (store.folder / "left").exists()
        killed = tmp_path / "killed"
        shutil.copytree(folder, killed)
    with image_store(killed, keep=True) as store:
        assert not (store.folder / "store").exists()
    with image_store(folder) as store:
        assert not (store.folder / "store").exists()
    assert not folder.exists()


def test_a_second_run_does_not_touch_the_store_of_the_first(tmp_path):
    with image_store(tmp_path / "store") as store:
        (store.folder / "layer").touch()
        with pytest.raises(BuildFailedError, match="another run"), image_store(tmp_path / "store"):
            pass
        assert (store.folder / "layer").exists()
