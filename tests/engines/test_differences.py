"""What this suite leaves one engine out of is what docs/reference/engines.md lists, and nothing else."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from warmfleet_testing.documents.documents import REPOSITORY, tables
from warmfleet_testing.processes.tested_engines import only_with

PAGE: Final = (REPOSITORY / "docs" / "reference" / "engines.md").read_text(encoding="utf-8")
HEADING: Final = "## What the common tests leave out\n"
SUITE: Final = Path(__file__).parent


def left_out(module: Path) -> Iterator[str]:
    """The `difference` of each `only_with` in a module: text, or the name of a constant."""
    tree = ast.parse(module.read_text())
    constants = {
        node.target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == only_with.__name__:
            [value] = [keyword.value for keyword in node.keywords if keyword.arg == "difference"]
            yield str(value.value if isinstance(value, ast.Constant) else constants[ast.unparse(value)])


def test_the_list_of_differences_is_what_the_suite_leaves_out() -> None:
    section = PAGE.partition(HEADING)[2].partition("\n## ")[0]
    [table] = tables(section)
    listed = [row[0].strip("`") for row in table[1:]]

    assert sorted(listed) == sorted({name for module in SUITE.glob("test_*.py") for name in left_out(module)})
    assert len(listed) == len(set(listed))


def test_no_test_leaves_an_engine_out_by_another_way() -> None:
    """Every test that starts an engine has both: by the fixture, without skips or marks of its own."""
    others = ("pytest.skip", "mark.skip", "skipif", "mark.vllm")
    found = [
        (module.name, word)
        for module in SUITE.glob("*.py")
        for word in others
        if module != Path(__file__) and word in module.read_text()
    ]

    assert found == []
