"""Every test here runs with each engine: `make check` has warmfleet's own, `make check-vllm` both.

What one of them is left out of is a row of a table in docs/reference/engines.md (`test_differences`).
"""

import pytest

from warmfleet_testing.processes.tested_engines import ENGINES, MARKER, EngineUnderTest


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> EngineUnderTest:
    found: EngineUnderTest = request.param
    return found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what its test states."""
    left_out = [item for item in items if not _belongs(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _belongs(item)]


def _belongs(item: pytest.Item) -> bool:
    mark, call = item.get_closest_marker(MARKER), getattr(item, "callspec", None)
    return mark is None or call is None or call.params.get("engine") in (None, mark.args[0])
