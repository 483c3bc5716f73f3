"""docs/reference/faults.md names tests that exist, and every test of a cluster's faults has its row."""

import ast
from functools import cache

import pytest

from warmfleet_testing.documents.fault_table import DOCUMENT, TESTS, FaultRow, fault_rows, references

LINES = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ") and ".py" in line]


@cache
def named_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split("|")[1].strip()[:60])
def test_every_test_that_the_document_names_exists(line: str) -> None:
    named = references(line)
    assert named
    for file, name in named:
        prefix = name.removesuffix("...")
        matching = [test for test in named_in(file) if test.startswith(prefix)]
        assert matching if prefix != name else not name or name in matching, (file, name)


def test_every_test_of_a_clusters_faults_has_one_row() -> None:
    rows = [reference for row in fault_rows() for reference in row.tests]
    files = [str(file.relative_to(TESTS)) for file in (TESTS / "kubernetes").rglob("test_faults_*.py")]
    wanted = {(file, test) for file in files for test in named_in(file)}

    assert wanted
    assert wanted <= set(rows)
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("row", fault_rows(), ids=lambda row: row.fault[:60])
def test_every_row_gives_the_loss_in_numbers(row: FaultRow) -> None:
    assert row.losses
