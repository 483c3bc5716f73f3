"""Printing of all commands: text or one JSON document on stdout, errors on stderr, no colour in a pipe.

Most of what commands print comes from other processes: names of models, errors, answers. None of it reaches a
terminal with its control characters, which could set the clipboard or write over other lines.
"""

import re
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
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


LAYOUT: Final = "\n\t"
"""Control characters that a text of several lines may have."""

_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, with the eight-bit ones, and those that change the order in which text is shown."""


def printable(text: str, *, keep: str = "") -> str:
    r"""`text` with each character that drives a terminal as `\u001b`, but for those of `keep`.

    JSON writes them so as well: a JSON document keeps its value.
    """
    return _UNPRINTABLE.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", text)


class _PrintableConsole(Console):
    """Shows control characters of all that is printed on it; styles and cursor movements are its own."""

    def render_str(self, text: str, **options: Any) -> Text:
        # Rich drops some control characters of a string at once; shown, they are noticed.
        return super().render_str(printable(text, keep=LAYOUT), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # A `Text` that another renderable holds comes by here alone.
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text, keep=LAYOUT), style)


def make_console(*, stderr: bool = False) -> Console:
    """A console without line wrapping and markup; rich omits colour for pipes and NO_COLOR.

    It prints no control characters but newlines and tabs, see `printable`.
    """
    return _PrintableConsole(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout. `value` is anything that msgspec encodes."""
    print_text(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_text(text: str) -> None:
    """Print `text` on stdout at once, without styles; control characters but newlines and tabs are shown.

    Of JSON too: it may have eight-bit control characters as they are.
    """
    sys.stdout.write(printable(text, keep=LAYOUT))
    sys.stdout.flush()


def print_line(console: Console, text: str, *, style: str = "") -> None:
    """Print one line: a newline in a name or reason of another process begins no line of ours."""
    console.print(printable(text), style=style)


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The head and the rows, columns two spaces apart, never truncated; `>NAME` is right-aligned.

    A cell is one line: control characters are shown.

    table_lines(["NAME", ">SIZE"], [["smollm2-135m-instruct", "260.0 MiB"]])
    """
    titles = [column.removeprefix(">") for column in columns]
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(title), *(len(row[i]) for row in shown), 0) for i, title in enumerate(titles)]
    lines = []
    for row in (titles, *shown):
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
    console.print(Text.assemble(("error:", "bold red"), f" {printable(str(error), keep=LAYOUT)}"))
    if advice := advice_of(error):
        console.print(f"       {advice}")
