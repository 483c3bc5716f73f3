"""Every row of docs/reference/conditions.md is waited for by a test, and no test waits for another."""

from pathlib import Path

import pytest

from warmfleet_testing.cluster.condition_rows import ROWS, Row, rows_of

PRODUCED = {row: test for file in Path(__file__).parent.rglob("test_*.py") for row, test in rows_of(file)}


@pytest.mark.parametrize("row", sorted(ROWS), ids="-".join)
def test_every_condition_is_produced_on_a_real_api_server(row: Row) -> None:
    assert row in PRODUCED


def test_no_test_waits_for_what_is_not_in_the_table() -> None:
    assert set(PRODUCED) <= ROWS
