"""Tests that need root, as an ordinary user's test run reports them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ONE_TEST = "def test_it(): pass\n"
NOT_ROOT = "import os\nos.geteuid = lambda: 1000\n"
ROOT = "import os\nos.geteuid = lambda: 0\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A test suite under this one's conftest.py: two tests that need root, one that does not."""
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    needs_root\n    gpu\n")
    for module in ("kubernetes/nodes/test_pods.py", "charts/test_lifecycle.py", "router/test_router.py"):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text(ONE_TEST)
    return tmp_path


def run(suite: Path, user: str, *arguments: str) -> str:
    """What pytest prints to a user whose number the plugin `user` sets."""
    (suite / "user.py").write_text(user)
    options = ("-p", "user", "-p", "no:cacheprovider", "--import-mode=importlib", "-ra", *arguments)
    # Of all plugins conftest.py needs one; the others take four times as long as these tests.
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-c", str(suite / "pytest.ini"), str(suite)],
        env={**os.environ, "PYTHONPATH": str(suite), "PYTHONDONTWRITEBYTECODE": "1", **plugins},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    ).stdout


@pytest.mark.parametrize("processes", [(), ("--numprocesses=1", "--dist=loadscope")])
def test_an_ordinary_user_learns_how_many_tests_need_root_before_the_summary(
    suite: Path, processes: tuple[str, ...]
) -> None:
    lines = run(suite, NOT_ROOT, *processes).splitlines()

    (head,) = [number for number, line in enumerate(lines) if "2 tests need root and did not run" in line]
    assert "sudo -E .venv/bin/pytest -m needs_root" in lines[head + 2]
    assert any("short test summary info" in line for line in lines[head + 3 :])
    assert re.search(r"1 passed, 2 skipped in ", lines[-1])


def test_root_leaves_nothing_out(suite: Path) -> None:
    report = run(suite, ROOT)

    assert "need root" not in report
    assert re.search(r"= 3 passed in ", report)


def test_a_test_that_is_skipped_for_another_reason_fails(suite: Path) -> None:
    # The skip is in the suite that this test runs, to see it fail; this module skips nothing.
    skips = "import pytest\ndef test_it(): pytest.skip('no network')\n"
    (suite / "router/test_router.py").write_text(skips)

    report = run(suite, ROOT)

    assert re.search(r"= 1 failed, 2 passed in ", report)
    assert "Only tests that need root, or a GPU where there is none, may be skipped." in report


@pytest.mark.parametrize("has_device", [False, True])
def test_a_test_that_needs_a_gpu_is_skipped_with_the_reason_only_where_there_is_none(
    suite: Path, has_device: bool
) -> None:
    # As above: the second test of that suite skips for a reason that is none, and fails for it.
    marked = "import pytest\n@pytest.mark.gpu\n"
    skips = f"{marked}def test_it(): pass\n@pytest.mark.gpu\ndef test_other(): pytest.skip('no network')\n"
    (suite / "router/test_router.py").write_text(skips)
    (suite / "torch.py").write_text(f"class cuda:\n    is_available = staticmethod(lambda: {has_device})\n")

    report = run(suite, ROOT)

    if has_device:
        assert re.search(r"= 1 failed, 3 passed in ", report)
    else:
        assert "SKIPPED [2]" in report
        assert "needs a CUDA device, and PyTorch finds none" in report
        assert re.search(r"= 2 passed, 2 skipped in ", report)
    assert "tests need root" not in report
