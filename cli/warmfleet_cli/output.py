"""Printing of all commands: text or one JSON document on stdout, errors on stderr, no colour in a pipe."""

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
    """Values of `--output`; take `OutputOption` as the type of the parameter."""

    TEXT = "text"
    JSON = "json"


OutputOption = Annotated[
    OutputFormat, typer.Option("--output", "-o", help="text for people, json for programs.")
]


def make_console(*, stderr: bool = False) -> Console:
    """A console without line wrapping and markup; rich omits colour for pipes and NO_COLOR."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout. `value` is anything that msgspec encodes."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
    sys.stdout.flush()


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The head and the rows, columns two spaces apart, never truncated; `>NAME` is right-aligned.

    table_lines(["NAME", ">SIZE"], [["smollm2-135m-instruct", "260.0 MiB"]])
    """
    titles = [column.removeprefix(">") for column in columns]
    widths = [max(len(title), *(len(row[i]) for row in rows), 0) for i, title in enumerate(titles)]
    lines = []
    for row in (titles, *rows):
        cells = [
            cell.rjust(width) if column.startswith(">") else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def print_table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print `table_lines`, the head in bold."""
    head, *lines = table_lines(columns, rows)
    console.print(Text(head, style="bold"))
    for line in lines:
        console.print(line)


def print_error(error: WarmfleetError) -> None:
    """Print `error: ...` on stderr, and the advice below it."""
    console = make_console(stderr=True)
    console.print(Text.assemble(("error:", "bold red"), f" {error}"))
    if advice := advice_of(error):
        console.print(f"       {advice}")
