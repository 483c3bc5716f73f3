"""docs/how-to/migrating.md: the chart takes every value that routers of other stacks become."""

from typing import Any

import pytest
import yaml

from warmfleet_testing.documents.documents import REPOSITORY, tables
from warmfleet_testing.resources.chart_render import REGISTRY, render

TEXT = (REPOSITORY / "docs/how-to/migrating.md").read_text()
MAPPINGS = [
    pytest.param(target.strip("`"), example.strip("`"), id=f"{source} to {target.strip('`')}")
    for table in tables(TEXT)
    if table[0][1:] == ["chart value", "example"]
    for source, target, example in table[1:]
]


@pytest.mark.parametrize(("path", "example"), MAPPINGS)
def test_the_chart_renders_with_a_value_of_another_stack(path: str, example: str) -> None:
    # With keys: the chart refuses to open a router without.
    keys = {"mode": "Keys", "existingSecret": "warmfleet-keys"}
    values: dict[str, Any] = {**REGISTRY, "router": {"auth": keys}}
    *parents, name = path.split(".")
    node = values
    for parent in parents:
        node = node.setdefault(parent, {})
    node[name] = yaml.safe_load(example)

    assert render(values).of_kind("Deployment")


def test_the_page_maps_routers() -> None:
    assert len(MAPPINGS) > 10
