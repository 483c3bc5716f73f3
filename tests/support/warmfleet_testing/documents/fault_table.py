"""The table of faults in docs/reference/faults.md, as its tests read it: what it promises is asserted."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[3]
DOCUMENT: Final = TESTS.parent / "docs" / "reference" / "faults.md"
_SECTION: Final = "## The cluster"
_REFERENCE: Final = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)?(?:::)?(test_\w+(?:\.\.\.)?)?`")
_LOSS: Final = re.compile(r"([a-z][a-z ]+): (\d+)")


@dataclass(frozen=True)
class FaultRow:
    """One fault of a cluster."""

    fault: str
    losses: Mapping[str, int]
    """What is lost at most, by its name in the table."""
    tests: tuple[tuple[str, str], ...]
    """File below tests/, and test."""


@cache
def fault_rows() -> tuple[FaultRow, ...]:
    """The rows of the section on the cluster."""
    section = DOCUMENT.read_text().partition(_SECTION)[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = []
    for line in lines[1:]:
        fault, loss, _, tests = (cell.strip() for cell in line.strip("|").split("|"))
        losses = {name: int(number) for name, number in _LOSS.findall(loss)}
        rows.append(FaultRow(fault, losses, references(tests)))
    return tuple(rows)


def losses(test: str) -> Mapping[str, int]:
    """What the row of this test promises."""
    (row,) = (row for row in fault_rows() if test in {name for _, name in row.tests})
    return row.losses


def references(text: str) -> tuple[tuple[str, str], ...]:
    """The tests that a piece of the document names, as (file, test); a name alone is of the file before it.

    A file without a test means all its tests: its test is empty. A name may end in `...`.
    """
    found: list[tuple[str, str]] = []
    last = ""
    for file, name in _REFERENCE.findall(text):
        last = file or last
        if last and (file or name):
            found.append((last, name))
    return tuple(found)
