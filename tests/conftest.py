"""What all tests have in common."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

_CLUSTERS = Path(__file__).parent / "kubernetes"

# The processes that tests start find `warmfleet_testing` as the tests themselves do.
_SUPPORT = str(Path(__file__).parent / "support")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_SUPPORT, os.environ.get("PYTHONPATH"))))

# How long an example takes says more about the machine than about the code.
settings.register_profile("warmfleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("warmfleet")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each process of several has one core: kernels of two threads would spin while they wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


class OneProcessForClusters(LoadScopeScheduling):
    """A module of tests stays in one process, and all modules that share a cluster do."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.split("::", 1)[0]
        return _CLUSTERS.name if _CLUSTERS.name in Path(module).parts else module


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """How several test processes share the tests; one alone needs no scheduler."""
    return OneProcessForClusters(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Clusters come first: theirs is the longest row of tests that has to stay in one process."""
    items.sort(key=lambda item: _CLUSTERS not in item.path.parents)
