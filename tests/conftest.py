"""What all tests have in common."""

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

from warmfleet_runtime.memory import importing
from warmfleet_worker.runner.device import has_driver

_GROUPS = {"kubernetes/nodes": "nodes", "kubernetes/clusters": "nodes", "kubernetes/api_server": "api_server"}
"""By folder. Clusters with nodes are one group: bridges and mounts of two would be in each other's way."""
_TWO_WORKERS = ("engines/test_faults.py", "engines/test_prediction.py")
"""Fleets of two workers: with vLLM, of several gigabytes each, not both at once."""
_LONG = ("system/test_engine_parity.py",)
"""Modules of several minutes: begun last, they would keep one process busy after all others have ended."""
_ORDER = {"nodes": 0, "api_server": 1, "long": 1, "two_workers": 1, "alone": 3}
"""Of groups; 2 is every module's."""
_ALONE = (
    *(
        f"admission/test_{noun}.py"
        for noun in ("admission", "estimated_wait", "queue_order", "refusals", "waiting_streams")
    ),
    "system/test_answers.py",
    "vllm/test_comparison.py",
    "vllm/test_vllm.py",
)
"""What they assert, a busy machine would change: they come last, when every other process has ended."""
_NEEDS_ROOT = (*_GROUPS, "charts/test_lifecycle.py", "charts/test_image_contents.py")
"""Folders and modules whose tests make network namespaces, mounts and overlays."""
_ROOT_IS_MISSING = "needs root"
_DEVICE_IS_MISSING = "needs a CUDA device, and PyTorch finds none"

# The processes that tests start find `warmfleet_testing` as the tests themselves do.
_SUPPORT = str(Path(__file__).parent / "support")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_SUPPORT, os.environ.get("PYTHONPATH"))))

# How long an example takes depends more on the machine than on the code.
settings.register_profile("warmfleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("warmfleet")

# Before anything imports Triton, and only where there is no GPU: kernels are run as they stand, by numpy.
if not has_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Fleets, clusters and oracles share the cores: a kernel's thread that waits for another must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _group(module: Path) -> str:
    if "/".join(module.parts[-2:]) in _ALONE:
        return "alone"
    if "/".join(module.parts[-2:]) in _LONG:
        return "long"
    if "/".join(module.parts[-2:]) in _TWO_WORKERS:
        return "two_workers"
    return _GROUPS.get("/".join(module.parts[-3:-1]), str(module))


class Groups(LoadScopeScheduling):
    """Tests of one group run in one process, one after the other; a module without a group is its own.

    The last group, "alone", waits until only one process is left.
    """

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        super().mark_test_complete(node, item_index, duration)
        if self.nodes[0] is not node:
            self._reschedule(self.nodes[0])  # may have waited for this one

    def _split_scope(self, nodeid: str) -> str:
        return _group(Path(nodeid.split("::", 1)[0]))

    def _reschedule(self, node: WorkerController) -> None:
        first, *others = self.nodes
        if list(self.workqueue) != ["alone"]:
            super()._reschedule(node)
        elif node is not first:
            node.shutdown()
        elif not any(self._pending_of(self.assigned_work[other]) for other in others):
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """How test processes share the tests."""
    return Groups(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Each test process imports every library there is."""
    with importing():
        return (yield)


def pytest_unconfigure() -> None:
    """What `importing` has put aside is collected at the end after all: else Triton reports it as leaked."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Clusters come first: theirs are the longest rows of tests that have to stay in one process."""
    for item in items:
        if {"/".join(item.path.parts[-3:-1]), "/".join(item.path.parts[-2:])} & set(_NEEDS_ROOT):
            item.add_marker("needs_root")
    items.sort(key=lambda item: _ORDER.get(_group(item.path), 2))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what an ordinary user cannot run, and what needs a GPU where there is none; else nothing."""
    if item.get_closest_marker("needs_root") and os.geteuid() != 0:
        # Namespaces and mounts need root, which a laptop's user is not; the summary counts what is missing.
        pytest.skip(_ROOT_IS_MISSING)
    if item.get_closest_marker("gpu") and not _has_device():
        # `make test` leaves these out; `pytest -m gpu` collects them everywhere.
        pytest.skip(_DEVICE_IS_MISSING)


def _has_device() -> bool:
    import torch  # noqa: PLC0415 - only these tests need it

    return torch.cuda.is_available()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that is skipped for any other reason fails: a success means that everything ran."""
    report = yield
    may_skip = item.get_closest_marker("needs_root") or (
        item.get_closest_marker("gpu") and _DEVICE_IS_MISSING in report.longreprtext
    )
    if report.skipped and not hasattr(report, "wasxfail") and not may_skip:
        report.outcome = "failed"
        report.longrepr = (
            f"{report.longreprtext}\nOnly tests that need root, or a GPU where there is none, may be skipped."
        )
    return report


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """How many tests this user could not run, and how to run them; pytest's own summary follows."""
    count = sum(
        _ROOT_IS_MISSING in report.longreprtext for report in terminalreporter.stats.get("skipped", ())
    )
    if count:
        terminalreporter.section(f"{count} tests need root and did not run")
        terminalreporter.line("They make network namespaces and mounts. To run them:")
        terminalreporter.line("    make model controlplane && sudo -E .venv/bin/pytest -m needs_root")
