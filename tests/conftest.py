"""What all tests have in common."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling

_GROUPS = {"kubernetes/nodes": "nodes", "kubernetes/clusters": "nodes", "kubernetes/api_server": "api_server"}
"""By folder. Clusters with nodes are one group: bridges and mounts of two would be in each other's way."""
_FIRST = {"nodes": 0, "api_server": 1}

# The processes that tests start find `warmfleet_testing` as the tests themselves do.
_SUPPORT = str(Path(__file__).parent / "support")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_SUPPORT, os.environ.get("PYTHONPATH"))))

# How long an example takes says more about the machine than about the code.
settings.register_profile("warmfleet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("warmfleet")

# Fleets, clusters and oracles share the cores: a kernel's thread that waits for another must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _group(module: Path) -> str:
    return _GROUPS.get("/".join(module.parts[-3:-1]), str(module))


class Groups(LoadScopeScheduling):
    """Tests of one group run in one process, one after the other; a module without a group is its own."""

    def _split_scope(self, nodeid: str) -> str:
        return _group(Path(nodeid.split("::", 1)[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """How test processes share the tests."""
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Clusters come first: theirs are the longest rows of tests that have to stay in one process."""
    items.sort(key=lambda item: _FIRST.get(_group(item.path), len(_FIRST)))
