"""What `make check-containers` installs, and that `make check` does not run it."""

import shutil
import subprocess

from warmfleet_testing.containers.builder import image_store
from warmfleet_testing.containers.packages import NEEDED, missing_packages
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
