"""What commands print: text of other processes drives no terminal, and the commands' own styles stay."""

import json

import pytest
from rich.live import Live
from rich.text import Text

from warmfleet_cli.errors import CliError
from warmfleet_cli.output import (
    LAYOUT,
    make_console,
    print_error,
    print_json,
    print_line,
    print_table,
    printable,
)

TITLE = "m\x1b]0;title\x07"
"""Sets the title of a terminal's window."""
SHOWN = "m\\u001b]0;title\\u0007"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consoles behave as on a terminal with colours."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.mark.parametrize(
    "code",
    [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)],
    ids="U+{:04X}".format,
)
def test_a_character_that_is_not_printable_is_shown_by_its_code(code: int) -> None:
    assert printable(f"a{chr(code)}b") == f"a\\u{code:04x}b"


def test_printable_text_of_any_script_stays_as_it_is() -> None:
    text = "naïve Ωμέγα 漢字 עברית العربية 👩‍💻 a\u00a0b \\u001b"

    assert printable(text) == text


def test_newlines_and_tabs_stay_where_a_text_may_have_them() -> None:
    assert printable("a\n\tb\r\n", keep=LAYOUT) == "a\n\tb\\u000d\n"
    assert printable("a\n\tb") == "a\\u000a\\u0009b"


@pytest.mark.usefixtures("terminal")
def test_a_console_shows_control_characters_and_keeps_its_own_styles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = make_console()
    console.print(f"{TITLE}\r\n\x9b2J", style="bold")
    console.print(Text.assemble(("head", "red"), " \x1b[2J\u202e"))

    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"\x1b[1m{SHOWN}\\u000d\x1b[0m",
        "\x1b[1m\\u009b2J\x1b[0m",
        "\x1b[31mhead\x1b[0m \\u001b[2J\\u202e",
    ]


@pytest.mark.usefixtures("terminal")
def test_a_screen_that_refreshes_moves_the_cursor_itself_and_not_by_its_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Live(console=make_console(), auto_refresh=False) as live:
        live.update(Text("one\ntwo"), refresh=True)
        live.update(Text("\x1b[Hreplicas"), refresh=True)

    shown = capsys.readouterr().out
    assert "\x1b[H" not in shown
    assert "\\u001b[Hreplicas" in shown
    assert "\x1b[1A" in shown, "the second text replaces the first"


def test_a_line_and_a_cell_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    console = make_console()
    print_line(console, f"model {TITLE}\nready")
    print_table(console, ["NAME", ">SIZE"], [[f"{TITLE}\n", "1"], ["n", "22"]])

    width = len(SHOWN) + len("\\u000a")
    assert capsys.readouterr().out.splitlines() == [
        f"model {SHOWN}\\u000aready",
        f"{'NAME':<{width}}  SIZE",
        f"{SHOWN}\\u000a     1",
        f"{'n':<{width}}    22",
    ]


def test_an_error_shows_what_it_quotes_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(CliError(f"{TITLE}:\n  | log\x9b1m", advice="\x1b[2J"))

    assert capsys.readouterr().err == f"error: {SHOWN}:\n  | log\\u009b1m\n       \\u001b[2J\n"


def test_a_json_document_has_no_control_characters_and_the_same_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    value = {"text": "".join(map(chr, range(0xA0))) + "\u202e\u2066 漢"}
    print_json(value)

    shown = capsys.readouterr().out
    assert json.loads(shown) == value
    assert printable(shown, keep="\n") == shown
