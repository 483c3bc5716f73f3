"""What all tests have in common."""

import os
from pathlib import Path

import pytest

_CLUSTERS = Path(__file__).parent / "kubernetes"

# The processes that tests start find `warmfleet_testing` as the tests themselves do.
_SUPPORT = str(Path(__file__).parent / "support")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_SUPPORT, os.environ.get("PYTHONPATH"))))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Clusters come last: one lives to the end of the run, and what computes beside it would wait for it."""
    items.sort(key=lambda item: _CLUSTERS in item.path.parents)
