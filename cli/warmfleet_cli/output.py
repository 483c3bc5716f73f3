"""How commands print: readable lines for people, one JSON document for programs, no colour in a pipe."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from warmfleet_cli.errors import advice_of
from warmfleet_contracts.errors import WarmfleetError


class OutputFormat(StrEnum):
    """The reader that a command prints for."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[
    OutputFormat, typer.Option("--output", "-o", help="text for people, json for programs.")
]


def make_console(*, stderr: bool = False) -> Console:
    """A console that wraps nothing and marks nothing up; rich drops colour for pipes and NO_COLOR."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """One document on stdout. Takes what msgspec can encode."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
    sys.stdout.flush()


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns by two spaces, never cut: what is printed can be copied and grepped. `>NAME` aligns right."""
    titles = [column.removeprefix(">") for column in columns]
    widths = [max(len(title), *(len(row[i]) for row in rows), 0) for i, title in enumerate(titles)]
    for row in (titles, *rows):
        cells = [
            cell.rjust(width) if column.startswith(">") else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        console.print(Text("  ".join(cells).rstrip(), style="bold" if row is titles else ""))


def print_error(error: WarmfleetError) -> None:
    """`error: ...` on stderr, and what to do about it."""
    console = make_console(stderr=True)
    console.print(Text.assemble(("error:", "bold red"), f" {error}"))
    if advice := advice_of(error):
        console.print(f"       {advice}")
