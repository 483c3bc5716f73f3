"""What `make check-containers` installs, and that `make check` does not run it."""

import subprocess

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
